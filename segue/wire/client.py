"""A worker seen from outside, in our types and errors; knows nothing of retries, deadlines or re-attachment."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import grpc

from segue.errors import WorkerUnavailable
from segue.ids import Handle
from segue.v1 import worker_pb2 as pb
from segue.v1.worker_pb2_grpc import WorkerStub
from segue.wire.calls import description_from_proto, generate_to_proto
from segue.wire.channel import PLAIN, TlsConfig, open_channel
from segue.wire.faults import error_from_rpc
from segue.wire.session import router_message_to_proto, worker_message_from_proto
from segue.wire.snapshot_calls import (
    snapshot_taken_from_proto,
    summaries_from_proto,
    take_snapshot_to_proto,
)
from segue.wire.status import status_from_proto
from segue.wire.values import (
    Accepted,
    GenerateSpec,
    RouterMessage,
    SnapshotSummary,
    SnapshotTaken,
    TakeSnapshot,
    WorkerDescription,
    WorkerMessage,
    WorkerStatus,
)

T = TypeVar("T")


class SessionCall:
    """The open multiplexed stream. One reader and one writer at a time."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[pb.RouterMessage, pb.WorkerMessage]") -> None:
        self._call = call

    async def read(self) -> WorkerMessage:
        """The next message. Raises WorkerUnavailable when the stream has ended, however it ended."""
        message = await own_error(self._call.read())
        if not isinstance(message, pb.WorkerMessage):
            raise WorkerUnavailable("the worker closed the session")
        return worker_message_from_proto(message)

    async def write(self, message: RouterMessage) -> None:
        """Sends one message; waits while the worker takes none."""
        await own_error(self._call.write(router_message_to_proto(message)))

    def cancel(self) -> None:
        """Ends the stream; a read that waits raises WorkerUnavailable."""
        self._call.cancel()


class WorkerClient:
    """The calls of one worker at `address` (host:port). Every failure is a ServingError."""

    def __init__(self, address: str, tls: TlsConfig = PLAIN) -> None:
        self._channel = open_channel(address, tls)
        self._stub = WorkerStub(self._channel)

    async def describe(self, timeout_s: float) -> WorkerDescription:
        call = self._stub.Describe(pb.DescribeRequest(), timeout=timeout_s)
        return description_from_proto(await own_reply(call, pb.WorkerDescription))

    async def generate(self, spec: GenerateSpec, timeout_s: float) -> Accepted:
        reply = await own_reply(self._stub.Generate(generate_to_proto(spec), timeout=timeout_s), pb.GenerateReply)
        if reply.handle == 0:
            raise WorkerUnavailable(
                "the worker accepted a request and gave no handle: its reply was damaged on its way"
            )
        return Accepted(Handle(reply.handle), reply.restored)

    async def status(self, timeout_s: float) -> WorkerStatus:
        call = self._stub.Status(pb.StatusRequest(), timeout=timeout_s)
        status = status_from_proto(await own_reply(call, pb.WorkerStatus))
        if not status.worker_id:
            raise WorkerUnavailable("the worker's status has no end: it was damaged on its way")
        return status

    async def take_snapshot(self, asked: TakeSnapshot, timeout_s: float) -> SnapshotTaken:
        """Returns when it is durable.

        After WorkerUnavailable nobody knows whether it was taken: a choice that has left ends on its session as MOVED.
        """
        call = self._stub.TakeSnapshot(take_snapshot_to_proto(asked), timeout=timeout_s)
        taken = snapshot_taken_from_proto(await own_reply(call, pb.TakeSnapshotReply))
        # The size comes last.
        if not taken.snapshot_id or not taken.bytes:
            raise WorkerUnavailable("the worker took a snapshot, and its reply was damaged on its way")
        return taken

    async def list_snapshots(self, timeout_s: float) -> tuple[SnapshotSummary, ...]:
        call = self._stub.ListSnapshots(pb.ListSnapshotsRequest(), timeout=timeout_s)
        # A folder may have a thousand: that is milliseconds, for which nobody else should wait.
        return await asyncio.to_thread(summaries_from_proto, await own_reply(call, pb.ListSnapshotsReply))

    async def inspect_snapshot(self, snapshot_id: str, timeout_s: float, *, verify: bool = False) -> bytes:
        """The manifest, as JSON. With `verify` the worker has read all payloads and found every digest right."""
        request = pb.InspectSnapshotRequest(snapshot_id=snapshot_id, verify=verify)
        reply = await own_reply(self._stub.InspectSnapshot(request, timeout=timeout_s), pb.InspectSnapshotReply)
        if not reply.manifest:
            raise WorkerUnavailable(f"the worker's manifest of snapshot {snapshot_id} was damaged on its way")
        return reply.manifest

    async def delete_snapshot(self, snapshot_id: str, timeout_s: float) -> None:
        request = pb.DeleteSnapshotRequest(snapshot_id=snapshot_id)
        await own_reply(self._stub.DeleteSnapshot(request, timeout=timeout_s), pb.DeleteSnapshotReply)

    def session(self) -> SessionCall:
        return SessionCall(self._stub.Session())

    async def close(self) -> None:
        """Ends every call and the connection."""
        await self._channel.close()


async def own_reply(call: Awaitable[object], kind: type[T]) -> T:
    """Awaits a unary call. Raises our error for its failure, and WorkerUnavailable for a reply that cannot be read."""
    reply = await own_error(call)
    # grpc logs that it cannot parse a reply, and gives nothing in its place.
    if not isinstance(reply, kind):
        raise WorkerUnavailable(f"the worker's {kind.__name__} cannot be read: it was damaged on its way")
    return reply


async def own_error(call: Awaitable[T]) -> T:
    """Awaits a call and raises our error for whatever gRPC makes of its failure."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    except asyncio.InvalidStateError as error:
        # grpc's word for a write to a stream that has ended.
        raise WorkerUnavailable("the session has ended") from error
    except asyncio.CancelledError:
        # A call that was ended from here raises this too; only a cancelled task may pass it on.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise WorkerUnavailable("the call was ended") from None
