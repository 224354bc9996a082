"""Bodies of the snapshot calls, proto to value and back; decides nothing, and never reads a manifest."""

from collections.abc import Sequence

from segue.errors import InvalidRequest
from segue.ids import Handle, RouterId
from segue.state.snapshot.names import is_id
from segue.v1 import worker_pb2 as pb
from segue.wire.values import SnapshotSummary, SnapshotTaken, TakeSnapshot


def take_snapshot_to_proto(value: TakeSnapshot) -> pb.TakeSnapshotRequest:
    return pb.TakeSnapshotRequest(
        router_id=value.router_id,
        handle=value.handle,
        attempt=value.attempt,
        copy=value.copy,
        served=value.served,
        about=value.about,
        snapshot_id=value.snapshot_id,
        parked=value.parked,
    )


def take_snapshot_from_proto(message: pb.TakeSnapshotRequest) -> TakeSnapshot:
    """Raises InvalidRequest for one that was cut on its way: the id is last in it, and of one length."""
    if not message.about or not is_id(message.snapshot_id):
        raise InvalidRequest("the call for a snapshot does not say about what, or how to call it: it was damaged")
    return TakeSnapshot(
        router_id=RouterId(message.router_id),
        handle=Handle(message.handle),
        attempt=message.attempt,
        copy=message.copy,
        served=message.served,
        about=message.about,
        snapshot_id=message.snapshot_id,
        parked=message.parked,
    )


def snapshot_taken_to_proto(value: SnapshotTaken) -> pb.TakeSnapshotReply:
    return pb.TakeSnapshotReply(snapshot_id=value.snapshot_id, computed=value.computed, bytes=value.bytes)


def snapshot_taken_from_proto(message: pb.TakeSnapshotReply) -> SnapshotTaken:
    return SnapshotTaken(message.snapshot_id, message.computed, message.bytes)


def summaries_to_proto(values: Sequence[SnapshotSummary]) -> pb.ListSnapshotsReply:
    return pb.ListSnapshotsReply(
        snapshots=[
            pb.SnapshotSummary(
                snapshot_id=value.snapshot_id,
                request_id=value.request_id,
                kind=value.kind,
                created_s=value.created_s,
                bytes=value.bytes,
                computed=value.computed,
                tp_size=value.tp_size,
                claimed_by=value.claimed_by,
                refused=value.refused,
            )
            for value in values
        ]
    )


def summaries_from_proto(message: pb.ListSnapshotsReply) -> tuple[SnapshotSummary, ...]:
    return tuple(
        SnapshotSummary(
            snapshot_id=entry.snapshot_id,
            bytes=entry.bytes,
            # None of these is empty or zero where it is known.
            request_id=entry.request_id or None,
            kind=entry.kind or None,
            created_s=entry.created_s or None,
            computed=entry.computed or None,
            tp_size=entry.tp_size or None,
            claimed_by=entry.claimed_by or None,
            refused=entry.refused or None,
        )
        for entry in message.snapshots
    )
