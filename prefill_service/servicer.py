"""The gRPC face of a prefill worker: proto in, our types to the worker, our types out; decides nothing."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from prefill_service.worker import PrefillWorker
from segue.errors import InvalidRequest
from segue.handoff import FromReceiver
from segue.v1 import transfer_pb2, transfer_pb2_grpc
from segue.v1 import worker_pb2 as pb
from segue.v1.worker_pb2_grpc import WorkerServicer
from segue.wire import description_to_proto, status_to_proto
from segue.wire.transfer_stream import receiver_message_from_proto, sender_message_to_proto


class PrefillServicer(transfer_pb2_grpc.PrefillServicer):
    """One per process; ServingErrors leave it as they are and become statuses in the interceptor."""

    def __init__(self, worker: PrefillWorker) -> None:
        self._worker = worker

    async def Prefill(  # noqa: N802
        self,
        request_iterator: AsyncIterator[transfer_pb2.ReceiverMessage],
        context: "grpc.aio.ServicerContext[transfer_pb2.ReceiverMessage, transfer_pb2.SenderMessage]",
    ) -> AsyncIterator[transfer_pb2.SenderMessage]:
        async with aclosing(self._worker.serve(_incoming(request_iterator))) as messages:
            async for message in messages:
                yield sender_message_to_proto(message)


class StatusServicer(WorkerServicer):
    """What a router may ask a prefill worker: who it is and how it does. Requests reach it through decode workers."""

    def __init__(self, worker: PrefillWorker) -> None:
        self._worker = worker

    async def Describe(  # noqa: N802
        self,
        request: pb.DescribeRequest,
        context: "grpc.aio.ServicerContext[pb.DescribeRequest, pb.WorkerDescription]",
    ) -> pb.WorkerDescription:
        return description_to_proto(self._worker.describe())

    async def Status(  # noqa: N802
        self,
        request: pb.StatusRequest,
        context: "grpc.aio.ServicerContext[pb.StatusRequest, pb.WorkerStatus]",
    ) -> pb.WorkerStatus:
        return status_to_proto(await self._worker.status())

    async def Generate(  # noqa: N802
        self,
        request: pb.GenerateRequest,
        context: "grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateReply]",
    ) -> pb.GenerateReply:
        raise InvalidRequest(f"worker {self._worker.worker_id} computes prompts for decode workers only")

    async def Session(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.RouterMessage],
        context: "grpc.aio.ServicerContext[pb.RouterMessage, pb.WorkerMessage]",
    ) -> AsyncIterator[pb.WorkerMessage]:
        raise InvalidRequest(f"worker {self._worker.worker_id} has no sessions; connect to a decode worker")
        yield  # pragma: no cover


async def _incoming(messages: AsyncIterator[transfer_pb2.ReceiverMessage]) -> AsyncIterator[FromReceiver]:
    async for message in messages:
        yield receiver_message_from_proto(message)
