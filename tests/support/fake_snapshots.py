"""The snapshot calls of a worker without an engine: what it was asked, and what goes wrong on the way."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from segue.errors import ServingError
from segue.state.snapshot.manifest import Manifest
from segue.v1 import worker_pb2 as pb
from segue.wire import (
    SnapshotTaken,
    TakeSnapshot,
    error_metadata,
    error_to_status,
    snapshot_taken_to_proto,
    summaries_to_proto,
    take_snapshot_from_proto,
)
from tests.support.fake_folder import FakeFolder

PAYLOAD_BYTES = 4096


async def refuse(context: Any, error: ServingError) -> NoReturn:  # noqa: ANN401
    """Ends a call as the interceptor of a real worker does."""
    context.set_trailing_metadata(error_metadata(error))
    await context.abort(*error_to_status(error))
    raise AssertionError("an aborted call goes no further")


@dataclass(slots=True)
class FakeSnapshots:
    """Each of `refusals` is given once, to what is asked next; `failing` is given to every look into the folder.

    What was taken is durable once `durable` is set; nothing is deleted before `deleting` is. `mute` tells no session of
    what left. `looked_for` are the ids that were asked for. With `stands`, what is cancelled while it is asked for is
    written all the same: its image had been taken.
    """

    folder: FakeFolder
    asked: list[TakeSnapshot] = field(default_factory=list)
    looked_for: list[str] = field(default_factory=list)
    refusals: list[ServingError] = field(default_factory=list)
    deciding: asyncio.Event = field(default_factory=asyncio.Event)
    durable: asyncio.Event = field(default_factory=asyncio.Event)
    deleting: asyncio.Event = field(default_factory=asyncio.Event)
    failing: ServingError | None = None
    mute: bool = False
    reply_lost: bool = False
    stands: bool = False
    standing: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deciding.set()
        self.durable.set()
        self.deleting.set()

    async def asked_for(
        self,
        request: pb.TakeSnapshotRequest,
        context: Any,  # noqa: ANN401
        note: Callable[[], None],
    ) -> TakeSnapshot:
        """Waits until it may be taken, or refuses."""
        try:
            asked = take_snapshot_from_proto(request)
        except ServingError as error:
            await refuse(context, error)
        self.asked.append(asked)
        note()
        await self.deciding.wait()
        await self._refuse(context)
        return asked

    async def reply(self, taken: Manifest, context: Any) -> pb.TakeSnapshotReply:  # noqa: ANN401
        if self.reply_lost:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the reply is lost, as the test wanted")
        return snapshot_taken_to_proto(SnapshotTaken(taken.snapshot_id, taken.state.computed, PAYLOAD_BYTES))

    async def list(self, context: Any) -> pb.ListSnapshotsReply:  # noqa: ANN401
        await self._fail(context)
        return summaries_to_proto(self.folder.list())

    async def inspect(self, request: pb.InspectSnapshotRequest, context: Any) -> pb.InspectSnapshotReply:  # noqa: ANN401
        self.looked_for.append(request.snapshot_id)
        await self._fail(context)
        if request.verify:
            await self._refuse(context)
        try:
            return pb.InspectSnapshotReply(manifest=self.folder.read(request.snapshot_id))
        except ServingError as error:
            await refuse(context, error)

    async def delete(self, request: pb.DeleteSnapshotRequest, context: Any) -> pb.DeleteSnapshotReply:  # noqa: ANN401
        self.looked_for.append(request.snapshot_id)
        await self.deleting.wait()
        await self._fail(context)
        await self.take_out(request.snapshot_id, context)
        return pb.DeleteSnapshotReply()

    async def take_out(self, snapshot_id: str, context: Any) -> None:  # noqa: ANN401
        try:
            self.folder.take_out(snapshot_id)
        except ServingError as error:
            await refuse(context, error)

    async def _fail(self, context: Any) -> None:  # noqa: ANN401
        if self.failing is not None:
            await refuse(context, self.failing)

    async def _refuse(self, context: Any) -> None:  # noqa: ANN401
        if self.refusals:
            await refuse(context, self.refusals.pop(0))
