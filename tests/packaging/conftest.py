"""What the packaging tests share: pyproject.toml, read once."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# pytest itself brings tomli where the standard library has no reader yet.
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    """The whole of pyproject.toml."""
    return toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
