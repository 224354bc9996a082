"""A gRPC proxy for any service that a test lets cut, repeat, delay, swap or drop messages on their way."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

Messages = AsyncIterator[bytes]
Disturbance = Callable[[Messages], Messages]


def unchanged(messages: Messages) -> Messages:
    """The disturbance that is none."""
    return messages


class WireProxy(grpc.GenericRpcHandler):
    """Stands before the server at `target` while entered; calls pass as they are, but for what is disturbed.

    `up` and `down` hold a disturbance by the method's name: of what the caller sends, and of what it is answered.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.up: dict[str, Disturbance] = {}
        self.down: dict[str, Disturbance] = {}
        self.address = ""

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._server = await self._serve("127.0.0.1:0")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)
        await self._channel.close()

    async def restart(self) -> None:
        """Breaks every connection, and takes new ones at the same address."""
        await self._server.stop(None)
        self._server = await self._serve(self.address)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        path = handler_call_details.method

        async def relay(requests: Messages, context: Any) -> Messages:  # noqa: ANN401
            name = path.rpartition("/")[2]
            sent = self.up.get(name, unchanged)(requests)
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(path)
            call = method(sent)
            try:
                async for message in self.down.get(name, unchanged)(aiter(call)):
                    yield message
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(relay)

    async def _serve(self, address: str) -> grpc.aio.Server:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((self,))
        port = server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await server.start()
        return server
