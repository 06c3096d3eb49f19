"""Settings of a link from ``comm_args``: every wrong key and value is named."""

from __future__ import annotations

import pytest

from fedgmi_fedml.config.models import Config
from fedgmi_fedml.errors import ConfigError
from fedgmi_fedml.transport.link import LARGEST_CHUNK
from fedgmi_fedml.transport.settings import LinkSettings


def config(**keys: object) -> Config:
    """A configuration with these keys in ``comm_args``."""
    return Config.model_validate({"comm_args": {"backend": "FEDGMI_GRPC", **keys}})


def test_defaults() -> None:
    assert LinkSettings.from_config(config()) == LinkSettings()
    assert LinkSettings.from_config(config(grpc_ipconfig_path="x.csv", mqtt_config_path="y.yaml")) == LinkSettings()


def test_values_are_taken() -> None:
    given = {
        "chunk_bytes": 4096, "window_bytes": 1 << 20, "heartbeat_seconds": 2, "silence_seconds": 9.5,
        "grace_seconds": 0, "dial_seconds": 30, "backoff": [1, 5], "proxy": "http://user:secret@proxy.example.org:3128",
    }  # fmt: skip
    read = LinkSettings.from_config(config(**given))
    assert read == LinkSettings(**{**given, "backoff": (1, 5)})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"chunk_byte": 1}, 'comm_args: unknown key "chunk_byte": did you mean "chunk_bytes"? Valid: chunk_bytes, '),
        ({"colour": "red"}, 'comm_args: unknown key "colour": Valid: chunk_bytes, '),
        ({"chunk_bytes": LARGEST_CHUNK + 1}, "comm_args.chunk_bytes must be a whole number from 1024 to 4194304, is"),
        ({"chunk_bytes": "1"}, "comm_args.chunk_bytes must be a whole number from 1024 to 4194304, is '1'"),
        ({"chunk_bytes": True}, "comm_args.chunk_bytes must be a whole number"),
        ({"dial_seconds": -1}, "comm_args.dial_seconds must be a number from 0 to"),
        ({"dial_seconds": float("nan")}, "comm_args.dial_seconds must be a number"),
        ({"backoff": 3}, "comm_args.backoff must be [first, longest]"),
        ({"backoff": [3, 1]}, "comm_args.backoff must be [first, longest]"),
        ({"backoff": [0, 1]}, "comm_args.backoff must be [first, longest]"),
        ({"heartbeat_seconds": 30}, "comm_args.silence_seconds must be at least twice heartbeat_seconds (30), is 45"),
    ],
)
def test_what_is_wrong_is_named(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        LinkSettings.from_config(config(**keys))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("proxy", ["proxy", "https://u:secret@p:1", "u:secret@proxy:port", "http://u:secret@p:1/x", 7])
def test_a_wrong_proxy_is_not_shown(proxy: object) -> None:
    with pytest.raises(ConfigError, match=r"comm_args\.proxy must be host:port") as error:
        LinkSettings.from_config(config(proxy=proxy))
    assert "secret" not in str(error.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        LinkSettings.from_config(config(chunk_bytes=1, backoff=0, colour="red"))
    assert len(error.value.problems) == 3


def test_values_given_in_code_are_checked_too() -> None:
    with pytest.raises(ValueError, match="window_bytes must be"):
        LinkSettings(window_bytes=0)
