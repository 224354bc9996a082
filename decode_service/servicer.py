"""The gRPC face of a worker: proto in, our types to the worker, our types out; decides nothing."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from decode_service.worker import Worker
from segue.v1 import worker_pb2 as pb
from segue.v1.worker_pb2_grpc import WorkerServicer
from segue.wire import (
    RouterMessage,
    description_to_proto,
    generate_from_proto,
    router_message_from_proto,
    snapshot_taken_to_proto,
    status_to_proto,
    summaries_to_proto,
    take_snapshot_from_proto,
    worker_message_to_proto,
)


class Servicer(WorkerServicer):
    """One per process; ServingErrors leave it as they are and become statuses in the interceptor."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Describe(  # noqa: N802
        self,
        request: pb.DescribeRequest,
        context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.WorkerDescription],
    ) -> pb.WorkerDescription:
        return description_to_proto(self._worker.describe())

    async def Generate(  # noqa: N802
        self,
        request: pb.GenerateRequest,
        context: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateReply],
    ) -> pb.GenerateReply:
        accepted = await self._worker.generate(generate_from_proto(request))
        return pb.GenerateReply(handle=accepted.handle, restored=accepted.restored)

    async def Session(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.RouterMessage],
        context: grpc.aio.ServicerContext[pb.RouterMessage, pb.WorkerMessage],
    ) -> AsyncIterator[pb.WorkerMessage]:
        async with aclosing(self._worker.session(_incoming(request_iterator))) as messages:
            async for message in messages:
                yield worker_message_to_proto(message)

    async def Status(  # noqa: N802
        self,
        request: pb.StatusRequest,
        context: grpc.aio.ServicerContext[pb.StatusRequest, pb.WorkerStatus],
    ) -> pb.WorkerStatus:
        return status_to_proto(await self._worker.status())

    async def TakeSnapshot(  # noqa: N802
        self,
        request: pb.TakeSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.TakeSnapshotRequest, pb.TakeSnapshotReply],
    ) -> pb.TakeSnapshotReply:
        return snapshot_taken_to_proto(await self._worker.take_snapshot(take_snapshot_from_proto(request)))

    async def ListSnapshots(  # noqa: N802
        self,
        request: pb.ListSnapshotsRequest,
        context: grpc.aio.ServicerContext[pb.ListSnapshotsRequest, pb.ListSnapshotsReply],
    ) -> pb.ListSnapshotsReply:
        return summaries_to_proto(await self._worker.snapshots.list())

    async def InspectSnapshot(  # noqa: N802
        self,
        request: pb.InspectSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.InspectSnapshotRequest, pb.InspectSnapshotReply],
    ) -> pb.InspectSnapshotReply:
        manifest = await self._worker.snapshots.inspect(request.snapshot_id, verify=request.verify)
        return pb.InspectSnapshotReply(manifest=manifest)

    async def DeleteSnapshot(  # noqa: N802
        self,
        request: pb.DeleteSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.DeleteSnapshotRequest, pb.DeleteSnapshotReply],
    ) -> pb.DeleteSnapshotReply:
        await self._worker.snapshots.delete(request.snapshot_id)
        return pb.DeleteSnapshotReply()


async def _incoming(messages: AsyncIterator[pb.RouterMessage]) -> AsyncIterator[RouterMessage]:
    async for message in messages:
        yield router_message_from_proto(message)
