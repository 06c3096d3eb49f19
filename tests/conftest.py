"""Programs that tests drive and pip cannot install: without them a test is skipped, but not where CI installed them."""

from __future__ import annotations

import os
import shutil

import pytest

PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
"""Debian puts servers where only root's PATH looks."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for the programs of ``needs_program``; one of its names will do."""
    for mark in item.iter_markers("needs_program"):
        if not any(shutil.which(name, path=PLACES) for name in mark.args):
            reason = f"none of {', '.join(mark.args)} is installed"
            if mark.args[0] in os.environ.get("FEDGMI_REQUIRED_PROGRAMS", "").split():
                pytest.fail(f"{reason}, and CI had found {mark.args[0]}", pytrace=False)
            pytest.skip(reason)
