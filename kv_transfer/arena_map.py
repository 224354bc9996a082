"""Where a storage's units lie, as its peers must know it; reads no state."""

from dataclasses import replace

from kv_transfer.plan import Side
from segue.peering import ArenaMap, ArenaPart
from segue.state.layout import Shard
from segue.state.storage import Storage


def map_arena(storage: Storage) -> ArenaMap:
    """Base, size and count of every component's units."""
    parts = []
    for component, layout in storage.layouts.items():
        first = layout.fields[0].tensor
        units = int(storage.view(first.layer, first.name).shape[0])
        base = int(storage.unit_bytes(component, 0).storage_offset())
        parts.append(ArenaPart(component, base, layout.unit_bytes, units))
    return ArenaMap(storage.arena.numel(), tuple(parts))


def side_of_peer(ours: Side, shard: Shard) -> Side:
    """The side of a peer with our fingerprint that holds another shard of the same state."""
    layouts = tuple(
        replace(layout, groups=shard.groups(layout.groups * layout.shard.tp_size), shard=shard)
        for layout in ours.layouts
    )
    return replace(ours, layouts=layouts)
