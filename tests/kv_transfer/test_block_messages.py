"""State as messages: the same bytes at the other end, and no byte where none was promised."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.block_messages import MESSAGE_BYTES, cut_messages, put_message
from kv_transfer.blocks import Places, cut_blocks
from kv_transfer.plan import ByteRun, Piece
from segue.errors import TransferFailed, TransferRefused
from segue.handoff import BlockBytes, Part, Ticket, UnitRow
from segue.ids import RequestId, ReservationId
from segue.peering import ArenaMap, ArenaPart
from segue.state.regions import Regions
from segue.state.spec import ComponentName

FULL = ComponentName.FULL
TICKET = Ticket(RequestId("r"), ReservationId(1), 1)


def arena(unit_bytes: int, units: int) -> tuple[ArenaMap, torch.Tensor]:
    made = torch.randint(0, 256, (unit_bytes * units,), dtype=torch.uint8)
    return ArenaMap(made.numel(), (ArenaPart(FULL, 0, unit_bytes, units),)), made


def messages(
    unit_bytes: int, ours: list[int], theirs: list[int], source: torch.Tensor, map_: ArenaMap
) -> list[BlockBytes]:
    piece = Piece(Part.STATE, FULL, 0, len(ours))
    places = [Places([UnitRow(Part.STATE, FULL, 0, tuple(units))]) for units in (ours, theirs)]
    runs = {FULL: (ByteRun(0, 0, unit_bytes),)}
    return list(
        cut_messages(Regions([source]), TICKET, cut_blocks([piece], runs, (places[0], map_), (places[1], map_)))
    )


@given(st.permutations(range(1, 9)), st.permutations(range(1, 9)), st.integers(1, 8))
def test_pages_arrive_whole_and_nothing_else_changes(ours: list[int], theirs: list[int], count: int) -> None:
    map_, source = arena(8, 10)
    target, row = torch.zeros_like(source), UnitRow(Part.STATE, FULL, 0, tuple(theirs[:count]))
    for message in messages(8, ours[:count], theirs[:count], source, map_):
        put_message(Regions([target]), map_, message, [row])
    expected = torch.zeros_like(source).view(10, 8)
    expected[theirs[:count]] = source.view(10, 8)[ours[:count]]
    assert torch.equal(target.view(10, 8), expected)


def test_a_page_larger_than_a_message_is_cut() -> None:
    map_, source = arena(MESSAGE_BYTES + 17, 3)
    target = torch.zeros_like(source)
    sent = messages(MESSAGE_BYTES + 17, [2], [1], source, map_)
    assert [len(message.payload) for message in sent] == [MESSAGE_BYTES, 17]
    for message in sent:
        put_message(Regions([target]), map_, message, [UnitRow(Part.STATE, FULL, 0, (1,))])
    assert torch.equal(target.view(3, -1)[1], source.view(3, -1)[2])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"payload": b"\0" * 16}, TransferFailed),
        ({"payload": b"\0" * 15}, TransferRefused),
        ({"offsets": (0,)}, TransferRefused),
        ({"offsets": (25,)}, TransferRefused),
        ({"offsets": (1 << 50,)}, TransferRefused),
        ({"offsets": (24, 0), "lengths": (8, 8)}, TransferRefused),
        ({"offsets": (24, 32, 0), "lengths": (8, 8)}, TransferRefused),
    ],
)
def test_damaged_or_misdirected_bytes_are_refused_and_none_is_written(
    change: dict[str, object], error: type[Exception]
) -> None:
    map_, source = arena(8, 10)
    target = torch.zeros_like(source)
    (message,) = messages(8, [1, 2], [3, 4], source, map_)
    bad = replace(message, **change)  # type: ignore[arg-type]
    with pytest.raises(error):
        put_message(Regions([target]), map_, bad, [UnitRow(Part.STATE, FULL, 0, (4, 3))])
    assert not target.any()


def test_bytes_without_a_promise_are_refused() -> None:
    map_, source = arena(8, 10)
    (message,) = messages(8, [1], [3], source, map_)
    with pytest.raises(TransferRefused, match="not promised"):
        put_message(Regions([torch.zeros_like(source)]), map_, message, [])


def test_messages_go_from_regions_to_regions() -> None:
    """Two parts of every unit at both ends, each in a region of its own; what one part has may not reach the other."""
    source, target = (Regions([fill(80) for _ in range(2)]) for fill in (random_bytes, no_bytes))
    map_ = ArenaMap(source.bytes, tuple(ArenaPart(FULL, source.starts[rank], 8, 10, rank) for rank in range(2)))
    rows = [UnitRow(Part.STATE, FULL, 0, (3, 7))]
    places = Places(rows), map_
    crossed = {FULL: (ByteRun(0, 0, 8, source_rank=0, target_rank=1), ByteRun(0, 0, 8, source_rank=1, target_rank=0))}
    blocks = cut_blocks([Piece(Part.STATE, FULL, 0, 2)], crossed, places, places)
    for message in cut_messages(source, TICKET, blocks):
        put_message(target, map_, message, rows)
    for ours, theirs in ((0, 1), (1, 0)):
        expected = torch.zeros(10, 8, dtype=torch.uint8)
        expected[[3, 7]] = source.tensors[ours].view(10, 8)[[3, 7]]
        assert torch.equal(target.tensors[theirs].view(10, 8), expected)


def random_bytes(count: int) -> torch.Tensor:
    return torch.randint(1, 256, (count,), dtype=torch.uint8)


def no_bytes(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)
