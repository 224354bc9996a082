"""A worker's port: bound first of all, open once there is something to answer with; knows no service by itself."""

from collections.abc import Callable, Sequence

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from kv_transfer.hosting.config import WorkerConfig
from kv_transfer.hosting.interceptor import ErrorInterceptor
from segue.errors import ConfigError
from segue.wire.channel import PLAIN, TlsConfig, bind

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_STOP_GRACE_S = 2.0


class Listener:
    """Connections wait at the bound port until `start`."""

    def __init__(self, config: WorkerConfig, silence_s: float, tls: TlsConfig = PLAIN) -> None:
        """Binds. A caller that is silent for longer than `silence_s` is cut off, also where a call to it hangs.

        Raises ConfigError when the port cannot be had.
        """
        self._health = health_aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[ErrorInterceptor()],
            options=[
                # Without this two workers could share one port and each get half of the calls.
                ("grpc.so_reuseport", 0),
                # A frozen or unreachable peer answers no ping: its connection ends, and with it a write that hangs.
                ("grpc.keepalive_time_ms", int(silence_s * 1000)),
                ("grpc.keepalive_timeout_ms", int(silence_s * 1000)),
                ("grpc.max_receive_message_length", 64 << 20),
            ],
        )
        try:
            port = bind(self._server, f"{config.host}:{config.port}", tls)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {config.host}:{config.port}: the port is in use or not permitted; choose another",
                param="port",
            ) from error
        self.address = f"{config.host}:{port}"

    async def start(self, register: Callable[[grpc.aio.Server], None], services: Sequence[str]) -> None:
        """Takes connections and says so to health checks. `register` adds the servicers of `services`."""
        register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*services, reflection.SERVICE_NAME, _HEALTH), self._server)
        await self._server.start()
        for service in ("", *services):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def announce_end(self) -> None:
        """Health checks say from now on that nothing new is taken."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Closes the port; calls that are open get `grace_s` to end."""
        await self._server.stop(grace_s)
