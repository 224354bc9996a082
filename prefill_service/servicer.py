"""What routers ask of a prefill worker by gRPC: proto in, our types to the worker, our types out; decides nothing."""

from collections.abc import AsyncIterator

import grpc.aio

from prefill_service.worker import PrefillWorker
from segue.errors import InvalidRequest
from segue.v1 import worker_pb2 as pb
from segue.v1.worker_pb2_grpc import WorkerServicer
from segue.wire import description_to_proto, status_to_proto


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
