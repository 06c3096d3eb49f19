"""The server's end over gRPC: one port, mutual TLS, one stream of raw bytes a silo. No .proto, no pickle.

Who a silo is stands in its certificate (``fedgmi:<federation>/silo/<id>``); the id that it claims must be that one.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent import futures
from typing import Any

from cryptography import x509

from fedgmi_fedml.transport.api import LinkError
from fedgmi_fedml.transport.credentials import TlsFiles, read_own_tls, uris_of
from fedgmi_fedml.transport.grpc_options import METHOD, grpc, server_options
from fedgmi_fedml.transport.handshake import split_address
from fedgmi_fedml.transport.hub import Admission, Hub
from fedgmi_fedml.transport.settings import LinkSettings

log = logging.getLogger(__name__)


class GrpcServer(Hub):
    """``ServerTransport`` over gRPC. It listens when it has been made.

    Args:
        bind: where to listen, ``host:port``; port 0 takes a free one.
        tls: the server's files.
        run_id: the run's, told to every silo.
        federation: the federation's name.
        silos: the ids of the roster, asked anew for every connection.
        settings: sizes and patience.

    Attributes:
        port: where it listens.

    Raises:
        LinkError: (fatal) the port is taken or cannot be had, or the files cannot be used.
    """

    def __init__(
        self, bind: str, tls: TlsFiles, *, run_id: str, federation: str,
        silos: Callable[[], Collection[int]], settings: LinkSettings | None = None,
    ) -> None:  # fmt: skip
        settings = settings or LinkSettings()
        host, port = split_address(bind)
        files = read_own_tls(tls)
        _must_be_free(host, port)
        credentials = grpc.ssl_server_credentials([(files.key, files.certificate)], files.ca, require_client_auth=True)
        self._server = grpc.server(_Threads(), handlers=[_Handlers(self._stream)], options=server_options(settings))
        try:
            self.port = self._server.add_secure_port(bind, credentials)
        except RuntimeError as error:
            raise _taken(host, port) from error
        super().__init__(run_id, federation, silos, settings)
        self._server.start()

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One connection: this thread writes, another reads."""
        connection = self.expect(context.cancel)
        try:
            first = next(requests, None)
        except grpc.RpcError:
            first = None
        admission = None if first is None else self.admit(connection, first, _uris(context))
        if admission is None:
            self.forget(connection)
            return
        yield admission.answer
        if admission.station is None:
            return
        threading.Thread(target=self._read, args=(requests, admission), name="fedgmi-reader", daemon=True).start()
        try:
            yield from admission.frames()
        finally:
            self.over(admission)

    def _read(self, requests: Iterator[bytes], admission: Admission) -> None:
        try:
            for frame in requests:
                if not admission.feed(frame):
                    break
        except grpc.RpcError:
            pass  # cut
        except Exception:
            log.exception("reading a silo's connection failed; it is cut")
        finally:
            self.over(admission)

    def _stop(self) -> None:
        stopping = threading.Thread(target=self._server.stop, args=(None,), name="fedgmi-stop", daemon=True)
        stopping.start()
        stopping.join(3.0)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Our one method, bytes to bytes."""

    def __init__(self, stream: Callable[[Iterator[bytes], Any], Iterator[bytes]]) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(stream)

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method, ``None`` for those that are not ours."""
        return self._handler if handler_call_details.method == METHOD else None


class _Threads(futures.Executor):
    """A daemon thread for each call: as many as there are silos, and none keeps the process alive."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Run it in a thread of its own."""
        future: futures.Future[Any] = futures.Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="fedgmi-writer", daemon=True).start()
        return future


def _uris(context: Any) -> Collection[str]:
    """The URIs in the silo's certificate, which TLS has held against the authority."""
    pem = context.auth_context().get("x509_pem_cert", [b""])[0]
    try:
        return uris_of(x509.load_pem_x509_certificate(pem))
    except ValueError:
        return ()


def _must_be_free(host: str, port: int) -> None:
    """Try the port with a plain socket first, for its errors say what is wrong.

    Raises:
        LinkError: (fatal) it cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(found[0], found[1]) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(found[4])
            trial.listen(1)
    except socket.gaierror as error:
        raise LinkError(f'bind: the name "{host}" cannot be resolved ({error.strerror})', fatal=True) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(host, port) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise LinkError(f"bind: {host} is no address of this machine; 0.0.0.0 listens on all", fatal=True) from None
        raise LinkError(f"bind: {host}:{port}: {error.strerror}", fatal=True) from None


def _taken(host: str, port: int) -> LinkError:
    return LinkError(
        f"port {port} on {host} is taken, perhaps by another federation's server: one server a port; stop that one or "
        "bind another port",
        fatal=True,
    )
