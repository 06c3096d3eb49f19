"""gRPC itself, quietened and set up for links: imported by the two gRPC ends and nobody else."""

from __future__ import annotations

import os

# Strangers who speak no TLS to the port would fill standard error from within the core; we say what matters ourselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from fedgmi_fedml.transport.handshake import is_loopback
from fedgmi_fedml.transport.link import HEADER_BYTES, LARGEST_CHUNK
from fedgmi_fedml.transport.settings import LinkSettings

__all__ = ["METHOD", "SERVICE", "grpc", "server_options", "silo_options"]

SERVICE = "fedgmi.Link"
METHOD = f"/{SERVICE}/Stream"

_Options = list[tuple[str, int | str]]


def _both(settings: LinkSettings) -> _Options:
    """Limits just above what a frame needs, so that garbage cannot allocate; and HTTP/2's own pings, which find a dead
    connection even where a write hangs. Heartbeats travel at least as often, so no server takes the pings for abuse."""
    ping = int(1000 * max(10.0, 2 * settings.heartbeat_seconds))
    return [
        ("grpc.max_receive_message_length", LARGEST_CHUNK + HEADER_BYTES),
        ("grpc.max_send_message_length", LARGEST_CHUNK + HEADER_BYTES),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.keepalive_time_ms", ping),
        ("grpc.keepalive_timeout_ms", int(1000 * max(5.0, settings.silence_seconds / 2))),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(settings: LinkSettings) -> _Options:
    """Of the server."""
    return [
        *_both(settings),
        ("grpc.so_reuseport", 0),  # a second server on the port has to fail
        ("grpc.server_handshake_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", 4),  # a connection; a silo needs one
    ]


def silo_options(settings: LinkSettings, host: str) -> _Options:
    """Of a silo that dials ``host``. The environment's proxies are never used; ours not to this machine itself."""
    options: _Options = [
        *_both(settings),
        ("grpc.use_local_subchannel_pool", 1),  # each attempt connects afresh; pauses between them are our own
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]
    if settings.proxy is None or is_loopback(host):
        return [*options, ("grpc.enable_http_proxy", 0)]
    proxy = settings.proxy if settings.proxy.startswith("http://") else f"http://{settings.proxy}"
    return [*options, ("grpc.enable_http_proxy", 1), ("grpc.http_proxy", proxy)]
