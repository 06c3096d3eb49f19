"""A silo's end over gRPC: it dials out, with mutual TLS, and keeps one stream of raw bytes open each way.

TLS holds the server's certificate against the consortium's authority and the name that was dialled. Its URI
(``fedgmi:<federation>/server``) is not looked at: Python's gRPC shows a client nothing of the certificate it has
accepted, and a second connection made to look would prove nothing about this one. Nobody else can pose as the server:
a silo's certificate carries no host name, and the authority signs silos for client use only.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedgmi_fedml.transport.credentials import TlsFiles, read_own_tls, read_tls
from fedgmi_fedml.transport.grpc_options import METHOD, grpc, silo_options
from fedgmi_fedml.transport.handshake import diagnose, split_address
from fedgmi_fedml.transport.settings import LinkSettings
from fedgmi_fedml.transport.silo_end import DialFailed, SiloEnd


class GrpcSilo(SiloEnd):
    """``SiloTransport`` over gRPC.

    Args:
        address: the server's, ``host:port``, as its certificate names it.
        tls: this silo's files.
        silo: this silo's id.
        federation: the federation's name.
        settings: sizes and patience.

    Raises:
        LinkError: (fatal) the address or the files cannot be used, e.g. the certificate has expired.
    """

    def __init__(
        self, address: str, tls: TlsFiles, *, silo: int, federation: str, settings: LinkSettings | None = None
    ) -> None:
        settings = settings or LinkSettings()
        host, port = split_address(address)
        if port == 0:
            raise ValueError("port 0 cannot be dialled")
        read_own_tls(tls)
        super().__init__(_Dialler(address, host, tls, settings), address, silo, federation, settings)


_HANG_UPS = 3
"""So many times in a row, and hanging up on our certificate is no accident."""


class _Dialler:
    """Makes connections to one server."""

    def __init__(self, address: str, host: str, tls: TlsFiles, settings: LinkSettings) -> None:
        self.address, self.host, self.tls, self.settings = address, host, tls, settings
        self._hung_up = 0

    def __call__(self, frames: Iterator[bytes]) -> _Line:
        return _Line(self, frames)

    def trouble(self) -> DialFailed | None:
        """What is in the way of a connection, told better than gRPC tells it; ``None``: nothing now."""
        found = diagnose(self.address, self.tls, self.settings.proxy)
        self._hung_up = self._hung_up + 1 if found is not None and found.hung_up else 0
        return None if found is None else DialFailed(found.text, found.fatal or self._hung_up >= _HANG_UPS)


class _Line:
    """One attempt to connect, and the connection: a channel of its own with a single stream."""

    def __init__(self, dialler: _Dialler, frames: Iterator[bytes]) -> None:
        files = read_tls(dialler.tls)  # read anew: a kit may have been renewed while we were waiting
        credentials = grpc.ssl_channel_credentials(files.ca, files.key, files.certificate)
        options = silo_options(dialler.settings, dialler.host)
        self._dialler, self._address = dialler, dialler.address
        self._channel = grpc.secure_channel(dialler.address, credentials, options=options)
        self._call = self._channel.stream_stream(METHOD)(frames)
        self._cancelled = False
        self._heard = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for frame in self._call:
                self._heard = True
                yield frame
        except grpc.RpcError as error:
            if self._heard:
                raise DialFailed("the connection was cut") from error
            raise self._why(error) from error
        if not self._heard:
            raise DialFailed("the server hung up without an answer: is it ending, or of another version?")

    def _why(self, error: grpc.RpcError) -> DialFailed:
        """The cause of a connection that never was, told better than gRPC tells it."""
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return DialFailed(f"{self._address} is a gRPC server, but none of FedGMI's: is it the right port?")
        trouble = self._dialler.trouble()
        if trouble is not None:
            return trouble
        if self._cancelled:
            return DialFailed(f"the server at {self._address} does not answer")
        return DialFailed(f"the connection broke before the server had answered ({error.code().name.lower()})")

    def cancel(self) -> None:
        """End it from any thread."""
        self._cancelled = True
        self._call.cancel()

    def close(self) -> None:
        """Give the channel back."""
        self._call.cancel()
        self._channel.close()
