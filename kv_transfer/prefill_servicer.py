"""The Prefill service: proto in, our types to whoever sends, our types out; decides nothing."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import grpc.aio

from segue.handoff import FromReceiver, FromSender
from segue.v1 import transfer_pb2, transfer_pb2_grpc
from segue.wire.transfer_stream import receiver_message_from_proto, sender_message_to_proto


class PrefillServicer(transfer_pb2_grpc.PrefillServicer):
    """One per process; ServingErrors leave it as they are and become statuses in the interceptor."""

    def __init__(self, serve: Callable[[AsyncIterator[FromReceiver]], AsyncGenerator[FromSender, None]]) -> None:
        self._serve = serve

    async def Prefill(  # noqa: N802
        self,
        request_iterator: AsyncIterator[transfer_pb2.ReceiverMessage],
        context: "grpc.aio.ServicerContext[transfer_pb2.ReceiverMessage, transfer_pb2.SenderMessage]",
    ) -> AsyncIterator[transfer_pb2.SenderMessage]:
        async with aclosing(self._serve(_incoming(request_iterator))) as messages:
            async for message in messages:
                yield sender_message_to_proto(message)


async def _incoming(messages: AsyncIterator[transfer_pb2.ReceiverMessage]) -> AsyncIterator[FromReceiver]:
    async for message in messages:
        yield receiver_message_from_proto(message)
