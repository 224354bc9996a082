"""A worker's figures, proto to value and back; decides nothing.

Fields that have one name and type on both sides are listed by the value alone, so that a new one cannot be forgotten on
one way.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from segue.ids import WorkerId
from segue.state.pool import PoolCounts
from segue.v1 import worker_pb2 as pb
from segue.wire.values import (
    CacheFigures,
    CacheHits,
    ChosenPrompts,
    PoolStatus,
    ReplayFigures,
    RetractionFigures,
    SnapshotFigures,
    Transfers,
    WorkerStatus,
)

_POOL = [field.name for field in fields(PoolStatus)]
_TRANSFERS = [field.name for field in fields(Transfers)]
_CACHE = [field.name for field in fields(CacheFigures) if field.name not in ("hits", "prompts")]
_PROMPTS = [field.name for field in fields(ChosenPrompts)]
_RETRACTION = [field.name for field in fields(RetractionFigures) if field.name != "host"]
_HOST = ("name", "capacity", "free", "held")
_REPLAY = [field.name for field in fields(ReplayFigures)]
_SNAPSHOTS = [field.name for field in fields(SnapshotFigures)]
_PARTS = ("worker_id", "transfers", "cache", "retraction", "replay", "snapshots", "pools")
_LOAD = [field.name for field in fields(WorkerStatus) if field.name not in _PARTS]


def status_to_proto(value: WorkerStatus) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        worker_id=value.worker_id,
        transfers=pb.Transfers(**_alike(value.transfers, _TRANSFERS)),
        cache=pb.Cache(
            hits=[pb.CacheHits(limited_by=hits.limited_by, tokens=hits.tokens) for hits in value.cache.hits],
            prompts=[pb.ChosenPrompts(**_alike(prompts, _PROMPTS)) for prompts in value.cache.prompts],
            **_alike(value.cache, _CACHE),
        ),
        replay=pb.Replay(**_alike(value.replay, _REPLAY)),
        snapshots=pb.Snapshots(**_alike(value.snapshots, _SNAPSHOTS)),
        retraction=pb.Retraction(
            host=[pb.HostPool(**_alike(pool, _HOST)) for pool in value.retraction.host],
            **_alike(value.retraction, _RETRACTION),
        ),
        pools=[pb.PoolStatus(**_alike(pool, _POOL)) for pool in value.pools],
        **_alike(value, _LOAD),
    )


def status_from_proto(message: pb.WorkerStatus) -> WorkerStatus:
    hits = tuple(
        CacheHits(one.limited_by if one.HasField("limited_by") else None, one.tokens) for one in message.cache.hits
    )
    prompts = tuple(ChosenPrompts(**_alike(one, _PROMPTS)) for one in message.cache.prompts)
    host = tuple(
        PoolCounts(one.name, one.capacity, one.free, one.held, sink=one.capacity - one.free - one.held)
        for one in message.retraction.host
    )
    return WorkerStatus(
        worker_id=WorkerId(message.worker_id),
        transfers=Transfers(**_alike(message.transfers, _TRANSFERS)),
        cache=CacheFigures(hits=hits, prompts=prompts, **_alike(message.cache, _CACHE)),
        retraction=RetractionFigures(host=host, **_alike(message.retraction, _RETRACTION)),
        replay=ReplayFigures(**_alike(message.replay, _REPLAY)),
        snapshots=SnapshotFigures(**_alike(message.snapshots, _SNAPSHOTS)),
        pools=tuple(PoolStatus(**_alike(pool, _POOL)) for pool in message.pools),
        **_alike(message, _LOAD),
    )


def _alike(source: object, names: Iterable[str]) -> dict[str, Any]:
    """The fields that stand under the same names on the other side."""
    return {name: getattr(source, name) for name in names}
