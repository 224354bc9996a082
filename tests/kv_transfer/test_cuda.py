"""State in a CUDA device's memory: read, digested, sent as messages and registered as it is in the host's."""

import pytest
import torch

from kv_transfer.arena_map import map_arena
from kv_transfer.block_messages import cut_messages, put_message
from kv_transfer.blocks import Places, cut_blocks
from kv_transfer.digest import digest_contents, zero_tail
from kv_transfer.nixl_agent import NixlAgent, NixlConfig
from kv_transfer.plan import Side, TransferPlan, make_plan
from kv_transfer.scratch import Scratch
from segue.errors import ConfigError
from segue.handoff import Part, Terms, Ticket, UnitRow
from segue.ids import RequestId, ReservationId
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName
from segue.state.storage import Storage
from tests.support.handoff_state import model_state

pytestmark = pytest.mark.gpu

PAGE_TOKENS = 4
TOKENS = 29
UNITS = 16


def storage_on(device: str) -> tuple[Storage, TransferPlan]:
    state = model_state()
    made = layouts(state, PAGE_TOKENS, Shard())
    side = Side(made, PAGE_TOKENS, state.window)
    counts = {layout.component: UNITS for layout in made}
    return Storage(made, counts, torch.device(device)), make_plan(Terms(TOKENS, held_tokens=0), side, side)


def rows_of(plan: TransferPlan, first_unit: int) -> list[UnitRow]:
    return [
        UnitRow(
            piece.part, piece.component, piece.first, tuple(range(first_unit, first_unit + piece.stop - piece.first))
        )
        for piece in plan.state()
    ]


def test_digests_of_device_memory_are_those_of_the_same_bytes_on_the_host() -> None:
    (there, plan), (here, _) = storage_on("cuda"), storage_on("cpu")
    here.arena.random_()
    there.arena.copy_(here.arena)
    rows, contents = rows_of(plan, 3), plan.contents(Part.STATE)
    assert digest_contents(there, rows, contents) == digest_contents(here, rows, contents)


def test_a_changed_byte_on_the_device_changes_its_digest() -> None:
    storage, plan = storage_on("cuda")
    rows, contents = rows_of(plan, 1), plan.contents(Part.STATE)
    before = digest_contents(storage, rows, contents)
    for row in rows:
        # The first token of the last page: of the first page, part may be out of the window.
        storage.unit_bytes(row.component, row.units[-1] or 0)[0] ^= 1
    after = digest_contents(storage, rows, contents)
    assert all(ours != theirs for ours, theirs in zip(before, after, strict=True))


def test_messages_carry_state_from_device_to_device() -> None:
    (source, plan), (target, _) = storage_on("cuda"), storage_on("cuda")
    source.arena.random_()
    arena, ours, theirs = map_arena(source), rows_of(plan, 1), rows_of(plan, 5)
    blocks = cut_blocks(plan.state(), plan.runs, (Places(ours), arena), (Places(theirs), arena))
    for message in cut_messages(source.regions, Ticket(RequestId("r"), ReservationId(1), 1), blocks):
        put_message(target.regions, arena, message, theirs)
    contents = plan.contents(Part.STATE)
    assert digest_contents(target, theirs, contents) == digest_contents(source, ours, contents)
    assert not target.unit_bytes(ComponentName.FULL, 4).any()


def test_what_lies_past_a_prompts_end_is_cleared_on_the_device() -> None:
    storage, _ = storage_on("cuda")
    storage.arena.fill_(0xA5)
    zero_tail(storage, ComponentName.FULL, 2, 1)
    page = storage.view(1, "k")[2]
    assert page[:, 0].all()
    assert not page[:, 1:].any()


def test_scratch_memory_of_a_device_shows_what_was_filled_in() -> None:
    scratch = Scratch(torch.device("cuda"))
    offset = scratch.take()
    assert offset is not None
    assert not scratch.shows(offset, b"seed")
    scratch.fill(offset, b"seed")
    assert scratch.shows(offset, b"seed")


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_memory_that_peers_cannot_open_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, _ = storage_on("cuda")
    monkeypatch.setenv(name, "max_split_size_mb:64,expandable_segments:True")
    with pytest.raises(ConfigError, match="expandable_segments"):
        NixlAgent("refused", storage.regions, Scratch(torch.device("cuda")).memory, NixlConfig())
