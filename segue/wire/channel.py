"""How a process calls another over gRPC, in the clear or with both ends showing a certificate; makes no call."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from segue.errors import ConfigError

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A message is one step of all requests, or one prompt: both stay far below this.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # A restarted worker must be found in a fraction of a second, by every channel for itself.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Not a wait between attempts, as its name says, but the time that one attempt may take: connection, TLS and the
    # first settings. On a busy machine that is more than a moment, and an attempt that is refused does not wait for it.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Files (PEM) by which workers and routers prove to each other who they are; all empty: calls are in the clear.

    `authority` has signed the certificates of all. Where those name no addresses, `server_name` is the name that every
    one of them carries.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""
    server_name: str = ""

    def __post_init__(self) -> None:
        given = [name for name in ("certificate", "key", "authority") if getattr(self, name)]
        if len(given) not in (0, 3):
            raise ConfigError(
                f"tls has {' and '.join(given)} only; certificate, key and authority are needed together", param="tls"
            )

    @property
    def on(self) -> bool:
        """Whether calls are protected."""
        return bool(self.certificate)


PLAIN = TlsConfig()
"""Calls in the clear."""


def open_channel(address: str, tls: TlsConfig) -> grpc.aio.Channel:
    """A channel to `address` (host:port). Raises ConfigError for a file that cannot be read."""
    if not tls.on:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(_read(tls.authority), _read(tls.key), _read(tls.certificate))
    named: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
    if tls.server_name:
        named.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(address, credentials, options=named)


def bind(server: grpc.aio.Server, address: str, tls: TlsConfig) -> int:
    """Binds a server's port and returns its number.

    Raises RuntimeError when it cannot be had, ConfigError for a file that cannot be read. With certificates, a caller
    that shows none is turned away.
    """
    if not tls.on:
        return server.add_insecure_port(address)
    credentials = grpc.ssl_server_credentials(
        [(_read(tls.key), _read(tls.certificate))], _read(tls.authority), require_client_auth=True
    )
    return server.add_secure_port(address, credentials)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="tls") from error
