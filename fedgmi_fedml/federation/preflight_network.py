"""Preflight: the server's name, port and TLS as seen from here; on the server, whether its port is free."""

from __future__ import annotations

import socket

from fedgmi_fedml.federation.preflight import Finding, Missing, Node, needed
from fedgmi_fedml.federation.start import tls_files

_SECONDS = 5.0


def _target(node: Node) -> tuple[str, int, str, str | None]:
    """Host, port, both as text, and the proxy that the configuration names."""
    from fedgmi_fedml.transport.handshake import is_loopback, split_address
    from fedgmi_fedml.transport.settings import LinkSettings

    if node.request.offline:
        raise Missing("--offline leaves the network alone")
    address = node.request.address
    if address is None:
        address = needed(node.kit, "an address (--server), or a kit that is whole").server_address
    host, port = split_address(address)
    proxy = None if node.config is None else LinkSettings.from_config(node.config).proxy
    return host, port, address, None if is_loopback(host) else proxy


def name(node: Node) -> Finding:
    """Can the server's name be resolved?"""
    host, port, _, proxy = _target(node)
    if proxy is not None:
        raise Missing("the proxy of comm_args.proxy resolves it")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Finding(
            f'"{host}" cannot be resolved ({error.strerror or error}): check the address and this machine\'s DNS',
            "fail",
        )
    node.notes["resolved"] = True
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return Finding(f"{host} is {', '.join(addresses[:4])}")


def port(node: Node) -> Finding:
    """Does anything answer there?"""
    host, number, address, proxy = _target(node)
    if proxy is not None:
        raise Missing("the connection goes through the proxy; see server TLS")
    if "resolved" not in node.notes:
        raise Missing("needs the server's name")
    hint = "is the server up? (before it is: --offline)"
    try:
        socket.create_connection((host, number), timeout=_SECONDS).close()
    except ConnectionRefusedError:
        return Finding(f"nothing listens at {address} (connection refused): {hint}", "fail")
    except TimeoutError:
        return Finding(
            f"no answer from {address} within {_SECONDS:g} s: a firewall must let this machine dial out to it; {hint}",
            "fail",
        )
    except OSError as error:
        return Finding(f"{address}: {error.strerror or error}; {hint}", "fail")
    node.notes["answers"] = True
    return Finding(f"{address} answers")


def tls(node: Node) -> Finding:
    """Do both sides accept each other's certificates?"""
    from fedgmi_fedml.transport.handshake import explain

    _, _, address, proxy = _target(node)
    files = tls_files(needed(node.kit, "a kit that is whole"))
    if proxy is None and "answers" not in node.notes:
        raise Missing("needs a server that answers")
    trouble = explain(address, files, proxy)
    return Finding(trouble, "fail") if trouble else Finding(f"{address} and this silo accept each other's certificates")


def own_port(node: Node) -> Finding:
    """Can the server listen where it is to?"""
    from fedgmi_fedml.transport.handshake import split_address

    bind = node.request.bind or needed(needed(node.kit, "a kit that is whole").bind, "an address to listen on (--bind)")
    places = [(bind, "the federation")]
    tracking = None if node.config is None else node.config.tracking_args
    if tracking is not None and tracking.status_port:
        places.append((f"{_bracketed(tracking.status_bind)}:{tracking.status_port}", "the status page"))
    for place, purpose in places:
        trouble = _cannot_bind(*split_address(place))
        if trouble:
            return Finding(f"{place} ({purpose}): {trouble}", "fail")
    return Finding(f"{', '.join(place for place, _ in places)} can be listened on")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _cannot_bind(host: str, number: int) -> str:
    """Why not; empty where it can be."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is no obstacle
            trial.bind(place)
            trial.listen()
    except PermissionError:
        return "this user may not listen there; take a port above 1023 (bind in the project, or --bind)"
    except OSError as error:
        import errno

        if error.errno == errno.EADDRINUSE:
            return "is in use: another server, or another federation, which needs a port of its own"
        if error.errno == errno.EADDRNOTAVAIL:
            return "is no address of this machine; 0.0.0.0 takes all it has (bind in the project, or --bind)"
        return f"{error.strerror or error}"
    return ""
