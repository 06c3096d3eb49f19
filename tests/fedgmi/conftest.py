"""Lets the tests of this folder import its helpers (``transport_kit`` …): tests here are no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from command_line import run, simulation  # noqa: F401 - fixtures
from provision_site import site  # noqa: F401 - fixture
