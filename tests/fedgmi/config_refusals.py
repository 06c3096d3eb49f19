"""What the digits configuration refuses."""

from __future__ import annotations

import pytest

from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import ConfigError


def refused(*overrides: str) -> tuple[str, ...]:
    """The problems that ``digits`` has with these settings."""
    with pytest.raises(ConfigError) as caught:
        load_config("digits", overrides)
    return caught.value.problems


def one(*overrides: str) -> str:
    """The one problem that ``digits`` has with these settings."""
    found = refused(*overrides)
    assert len(found) == 1, found
    return found[0]
