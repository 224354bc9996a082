"""Digests of state by its logical content: equal for any place and length of pages, and any number of ranks.

Each token's row of a tensor is a sum of its 64-bit words under fixed odd weights, modulo 2**64; rows are mixed with
their position and added up, so no row is copied and no order of pages matters. It finds corruption, not forgery.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from kv_transfer.plan import Contents
from segue.errors import DigestMismatch
from segue.handoff import StateDigest, Ticket, UnitRow
from segue.ids import WorkerId
from segue.state.coverage import Coverage
from segue.state.layout import Field, UnitLayout
from segue.state.spec import ComponentName
from segue.state.storage import Storage

COVERAGE = Coverage("the digest", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def digest_contents(
    storage: Storage, rows: Sequence[UnitRow], contents: Sequence[Contents], *, every_copy: bool = False
) -> tuple[StateDigest, ...]:
    """One digest per component in `contents`; `rows` are one part's, and say where its pages lie.

    Every head group is in it once, so that it is the same for any number of ranks; with `every_copy`, what each rank
    has of it.
    """
    COVERAGE.require(one.component for one in contents)
    places = {row.component: row for row in rows}
    digests = []
    for one in contents:
        ranks = storage.ranks if every_copy else _leading(storage, one.component)
        digests.append(_finish(one, [_sums(rank, places[one.component], one) for rank in ranks]))
    return tuple(digests)


def require_equal_copies(
    storage: Storage, rows: Sequence[UnitRow], contents: Sequence[Contents], ticket: Ticket, peer: WorkerId
) -> None:
    """What ranks share has come to all of them from one place. Raises DigestMismatch naming a rank that has another."""
    places = {row.component: row for row in rows}
    for one in contents:
        shared: list[int] = []
        for number, rank in enumerate(storage.ranks):
            layout = rank.layouts[one.component]
            if layout.total_groups >= layout.shard.tp_size:
                break
            sums = _sums(rank, places[one.component], one)
            if layout.shard.leads(layout.total_groups):
                shared = sums.tolist()
            elif sums.tolist() != shared:
                raise DigestMismatch(
                    f"{ticket} from {peer}: {one.component.value} positions [{one.start}, {one.stop}) of rank {number} "
                    "are not those of the rank that it shares its head group with"
                )


def require_equal_digests(
    ours: Sequence[StateDigest],
    theirs: Sequence[StateDigest],
    contents: Sequence[Contents],
    ticket: Ticket,
    peer: WorkerId,
) -> None:
    """Raises DigestMismatch naming request, peer, component and positions when anything arrived other than sent."""
    sent = {digest.component: digest.value for digest in theirs}
    for digest, one in zip(ours, contents, strict=True):
        if (value := sent.get(digest.component)) != digest.value:
            raise DigestMismatch(
                f"{ticket} from {peer}: {digest.component.value} positions [{one.start}, {one.stop}) arrived with "
                f"digest {digest.value}, {'none' if value is None else value} was sent"
            )


def zero_tail(storage: Storage, component: ComponentName, page: int, used_tokens: int) -> None:
    """Clears what lies past the first `used_tokens` tokens of a page: it may be left over from another tenant."""
    for rank in storage.ranks:
        layout = rank.layouts[component]
        assert 0 < used_tokens <= layout.tokens, used_tokens
        if used_tokens == layout.tokens:
            return
        unit = rank.unit_bytes(component, page)
        for size, offsets in _alike(layout):
            step = offsets[1] - offsets[0] if len(offsets) > 1 else 0
            rows = (layout.groups, len(offsets), (layout.tokens - used_tokens) * size)
            first = unit.storage_offset() + offsets[0] + used_tokens * size
            unit.as_strided(rows, (layout.group_bytes, step, 1), first).zero_()


def _alike(layout: UnitLayout) -> Iterator[tuple[int, Sequence[int]]]:
    """Bytes of a token in one head group of a tensor, and the offsets of all tensors of that size.

    Together where they lie at equal steps, as those of like layers do: one call clears them all.
    """
    offsets: dict[int, list[int]] = {}
    for field in layout.fields:
        offsets.setdefault(field.tensor.group_bytes, []).append(field.offset_bytes)
    for size, places in offsets.items():
        if len({after - before for before, after in pairwise(places)}) <= 1:
            yield size, places
        else:
            yield from ((size, [place]) for place in places)


def _row_sums(view: torch.Tensor, units: Sequence[int | None], inner: int) -> NDArray[np.uint64]:
    """Weighted word sums over everything past the first `inner` axes, for the listed units in order."""
    rows = view.flatten(inner) if view.dim() > inner else view.unsqueeze(-1)
    size = rows.shape[-1] * rows.element_size()
    words = rows.view(_WORDS[next(width for width in _WORDS if size % width == 0)])
    weights = _weights(words.shape[-1])
    order = np.array([-1 if unit is None else unit for unit in units], dtype=np.int64)
    assert bool((order > 0).all()), "a page that is to be digested is not there"
    if words.is_cuda:
        picked = words[torch.from_numpy(order).to(words.device)].to(torch.int64)
        found = (picked * torch.from_numpy(weights.view(np.int64)).to(words.device)).sum(-1)
        return found.cpu().numpy().view(np.uint64)
    sums = np.empty((len(order), *words.shape[1:-1]), dtype=np.int64)
    array = words.numpy()
    # Runs of neighbouring units are read where they lie, in one call each.
    rising = np.argsort(order, kind="stable")
    for run in np.split(rising, np.flatnonzero(np.diff(order[rising]) != 1) + 1):
        start = int(order[run[0]])
        sums[run] = np.einsum("...w,w->...", array[start : start + len(run)], weights.view(np.int64))
    return sums.view(np.uint64)


@cache
def _weights(count: int) -> NDArray[np.uint64]:
    return _mix(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN) | np.uint64(1)


@cache
def _key(field: Field) -> np.uint64:
    name = f"{field.tensor.layer}.{field.tensor.name}".encode()
    return np.uint64(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little"))


def _leading(storage: Storage, component: ComponentName) -> list[Storage]:
    """The ranks that together have every head group of a component once, in the order of the groups."""
    layouts = [rank.layouts[component] for rank in storage.ranks]
    return [
        rank for rank, layout in zip(storage.ranks, layouts, strict=True) if layout.shard.leads(layout.total_groups)
    ]


def _sums(storage: Storage, row: UnitRow, contents: Contents) -> NDArray[np.uint64]:
    """One sum for each head group of one rank: of positions [start, stop), whose pages `row` holds, or of a slot."""
    if contents.component is ComponentName.RECURRENT:
        return _slot_sums(storage, row)
    return _page_sums(storage, row, contents)


def _page_sums(storage: Storage, row: UnitRow, contents: Contents) -> NDArray[np.uint64]:
    layout = storage.layouts[row.component]
    tokens = layout.tokens
    total = np.zeros(layout.groups, dtype=np.uint64)
    if contents.start == contents.stop:
        return total
    first, last = contents.start // tokens, (contents.stop - 1) // tokens
    units = [row.units[page - row.first] for page in range(first, last + 1)]
    positions = np.arange(first * tokens, (last + 1) * tokens, dtype=np.int64).reshape(-1, 1, tokens)
    live = (positions >= contents.start) & (positions < contents.stop)
    salt = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    for field in layout.fields:
        # [page, group, token]
        sums = _row_sums(storage.view(field.tensor.layer, field.tensor.name), units, inner=3)
        mixed = np.where(live, _mix(sums + salt), np.uint64(0))
        total += _mix(mixed.sum(axis=(0, 2), dtype=np.uint64) ^ _key(field))
    return total


def _slot_sums(storage: Storage, row: UnitRow) -> NDArray[np.uint64]:
    layout = storage.layouts[row.component]
    total = np.zeros(layout.groups, dtype=np.uint64)
    for field in layout.fields:
        sums = _row_sums(storage.view(field.tensor.layer, field.tensor.name), row.units, inner=2)
        total += _mix(sums[0] ^ _key(field))
    return total


def _finish(contents: Contents, groups: Sequence[NDArray[np.uint64]]) -> StateDigest:
    """The sums of all head groups, in order, in one short text."""
    head = f"{contents.component.value} {contents.start} {contents.stop} ".encode()
    sums = np.concatenate(groups).astype("<u8").tobytes()
    return StateDigest(contents.component, hashlib.blake2b(head + sums, digest_size=16).hexdigest())


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads every bit of a 64-bit value over all of them (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
