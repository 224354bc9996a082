"""Where a storage's units lie, as its peers must know it; reads no state."""

from dataclasses import replace

from kv_transfer.plan import Side
from segue.errors import TransferRefused
from segue.peering import ArenaMap, ArenaPart
from segue.state.layout import Shard
from segue.state.storage import Storage


def map_arena(storage: Storage) -> ArenaMap:
    """Base, size and count of every component's units, on every rank."""
    parts = []
    for rank, shard in enumerate(storage.ranks):
        for component, layout in shard.layouts.items():
            within = int(shard.unit_bytes(component, 0).storage_offset()) - int(shard.arena.storage_offset())
            base = storage.regions.starts[rank] + within
            parts.append(ArenaPart(component, base, layout.unit_bytes, shard.units(component), rank))
    return ArenaMap(storage.regions.bytes, tuple(parts))


def side_of_peer(ours: Side, tp_size: int) -> Side:
    """The side of a peer with our fingerprint whose state is shared by so many ranks.

    Raises TransferRefused where it cannot be.
    """
    for layout in ours.layouts:
        if not Shard(0, tp_size).splits(layout.total_groups):
            raise TransferRefused(f"{layout.total_groups} head groups of {layout.component} on {tp_size} ranks")
    return replace(ours, layouts=tuple(replace(layout, shard=Shard(0, tp_size)) for layout in ours.layouts))
