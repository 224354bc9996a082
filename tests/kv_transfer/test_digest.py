"""A digest sees every live byte of a component, and nothing of where it lies."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_transfer.digest import digest_contents, require_equal_copies, require_equal_digests, zero_tail
from kv_transfer.plan import Contents
from segue.errors import DigestMismatch
from segue.handoff import Part, StateDigest, Ticket, UnitRow
from segue.ids import RequestId, ReservationId, WorkerId
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from segue.state.storage import Storage
from tests.support.handoff_state import (
    FULL,
    RECURRENT,
    WINDOW,
    make_storage,
    model_state,
    shared_storage,
    write_pages,
    write_slot,
)

N, W = 13, 6
CONTENTS = (Contents(FULL, 0, N), Contents(WINDOW, N - W, N), Contents(RECURRENT, 0, N))
TICKET = Ticket(RequestId("r"), ReservationId(3), 1)


def placed(page_tokens: int, seed: int, tp: int = 1) -> tuple[Storage, list[UnitRow]]:
    """The same request's state in pages of another size and at other places, on so many ranks."""
    _, storage, _ = make_storage(model_state(W), page_tokens, 40)
    if tp > 1:
        storage = shared_storage(model_state(W), page_tokens, 40, tp)
    order = torch.randperm(39, generator=torch.Generator().manual_seed(seed)) + 1
    units = tuple(order[: -(-N // page_tokens)].tolist())
    rows = [UnitRow(Part.STATE, name, 0, units) for name in (FULL, WINDOW)]
    for row in rows:
        write_pages(storage, row, "r", 0, N)
    write_slot(storage, 5, "r", N)
    return storage, [*rows, UnitRow(Part.STATE, RECURRENT, 0, (5,))]


@pytest.mark.parametrize("page_tokens", [1, 2, 4, 16])
def test_digests_do_not_depend_on_page_size_or_place(page_tokens: int) -> None:
    assert digest_contents(*placed(page_tokens, 1), CONTENTS) == digest_contents(*placed(8, 2), CONTENTS)


@pytest.mark.parametrize("tp", [2, 4])
def test_digests_do_not_depend_on_the_number_of_ranks(tp: int) -> None:
    assert digest_contents(*placed(4, 1, tp), CONTENTS) == digest_contents(*placed(8, 2), CONTENTS)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("index", range(3))
def test_one_changed_byte_of_any_rank_is_seen(rank: int, index: int) -> None:
    """Full and recurrent head groups are two: of four ranks two share each, and every one has a copy."""
    storage, rows = placed(4, 1, 4)
    require_equal_copies(storage, rows, CONTENTS, TICKET, WorkerId("w9"))
    before = digest_contents(storage, rows, CONTENTS)
    kept = digest_contents(storage, rows, CONTENTS, every_copy=True)
    row, tensor = rows[index], storage.layouts[rows[index].component].fields[-1].tensor
    view = storage.ranks[rank].view(tensor.layer, tensor.name)
    cell = view[row.units[0], 0].view(-1) if row.component is RECURRENT else view[row.units[-1], 0, 0]
    cell.view(torch.uint8)[0] ^= 1
    assert digest_contents(storage, rows, CONTENTS, every_copy=True)[index] != kept[index]
    seen = digest_contents(storage, rows, CONTENTS)[index] != before[index]
    assert seen == (row.component is WINDOW or rank in (0, 2))
    if row.component is not WINDOW:
        with pytest.raises(DigestMismatch, match=f"w9: {row.component.value} positions .* of rank {rank // 2 * 2 + 1}"):
            require_equal_copies(storage, rows, CONTENTS, TICKET, WorkerId("w9"))


@settings(max_examples=40)
@given(st.data())
def test_one_changed_byte_changes_its_component_and_no_other(data: st.DataObject) -> None:
    storage, rows = placed(4, 1)
    before = digest_contents(storage, rows, CONTENTS)
    index = data.draw(st.integers(0, 2))
    row, one = rows[index], CONTENTS[index]
    tensor = data.draw(st.sampled_from(storage.layouts[row.component].fields)).tensor
    view = storage.view(tensor.layer, tensor.name)
    group = data.draw(st.integers(0, tensor.groups - 1))
    if row.component is RECURRENT:
        cell = view[5, group].view(-1)
    else:
        position = data.draw(st.integers(one.start, one.stop - 1))
        cell = view[row.units[position // 4], group, position % 4].view(-1)
    cell.view(torch.uint8)[data.draw(st.integers(0, cell.numel() * tensor.dtype.item_bytes - 1))] ^= 0x80
    changed = [one != other for one, other in zip(before, digest_contents(storage, rows, CONTENTS), strict=True)]
    assert changed == [i == index for i in range(3)]


def test_what_lies_past_the_prompt_or_before_the_window_is_not_seen() -> None:
    storage, rows = placed(4, 1)
    before = digest_contents(storage, rows, CONTENTS)
    storage.view(1, "k")[rows[0].units[-1], :, 1:] = 9.0
    storage.view(0, "k")[rows[1].units[0]] = 9.0
    assert digest_contents(storage, rows, CONTENTS) == before


def test_two_tokens_or_two_heads_that_changed_places_are_seen() -> None:
    storage, rows = placed(4, 1)
    before = digest_contents(storage, rows, CONTENTS)
    page = storage.view(1, "k")[rows[0].units[0]]
    page[:, [0, 1]] = page[:, [1, 0]]
    swapped = digest_contents(storage, rows, CONTENTS)
    assert swapped[0] != before[0]
    page[:, [0, 1]] = page[:, [1, 0]]
    page[[0, 1]] = page[[1, 0]]
    assert digest_contents(storage, rows, CONTENTS)[0] not in (before[0], swapped[0])


def test_two_tensors_that_changed_places_are_seen() -> None:
    storage, rows = placed(4, 1)
    before = digest_contents(storage, rows, CONTENTS)
    keys, values = storage.view(1, "k"), storage.view(1, "v")
    kept = keys.clone()
    keys.copy_(values)
    values.copy_(kept)
    assert digest_contents(storage, rows, CONTENTS)[0] != before[0]


def test_a_state_at_another_depth_has_another_digest() -> None:
    storage, rows = placed(4, 1)
    shorter = tuple(replace(one, stop=one.stop - 1) for one in CONTENTS)
    pairs = zip(digest_contents(storage, rows, CONTENTS), digest_contents(storage, rows, shorter), strict=True)
    assert all(one != other for one, other in pairs)


def test_the_tail_of_a_page_is_cleared_in_every_tensor_and_the_rest_kept() -> None:
    storage, rows = placed(4, 1)
    before = digest_contents(storage, rows, CONTENTS)
    page = rows[0].units[-1]
    assert page is not None
    zero_tail(storage, FULL, page, N - 12)
    for field in storage.layouts[FULL].fields:
        assert not storage.view(field.tensor.layer, field.tensor.name)[page, :, 1:].any()
    assert digest_contents(storage, rows, CONTENTS) == before


def test_a_mismatch_names_request_peer_component_and_positions() -> None:
    ours = digest_contents(*placed(4, 1), CONTENTS)
    theirs = [replace(one, value="00") if one.component is WINDOW else one for one in ours]
    with pytest.raises(
        DigestMismatch, match=r"request r \(attempt 1.*from w9: window positions \[7, 13\).* 00 was sent"
    ):
        require_equal_digests(ours, theirs, CONTENTS, TICKET, WorkerId("w9"))
    require_equal_digests(ours, ours, CONTENTS, TICKET, WorkerId("w9"))


def test_a_component_without_a_digest_is_a_mismatch() -> None:
    ours = digest_contents(*placed(4, 1), CONTENTS)
    with pytest.raises(DigestMismatch, match="none was sent"):
        require_equal_digests(ours, [StateDigest(ComponentName.FULL, ours[0].value)], CONTENTS, TICKET, WorkerId("w"))


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 12, 16, 64])
@pytest.mark.parametrize("dtype", [DType.FLOAT8_E4M3, DType.BFLOAT16, DType.FLOAT32])
def test_vectors_of_any_size_are_read_to_their_last_byte(dtype: DType, dim: int) -> None:
    def digest(page_tokens: int, damaged: int | None = None) -> StateDigest:
        _, storage, _ = make_storage(ModelState.of([StateTensor(0, "k", FULL, 2, (dim,), dtype)]), page_tokens, 8)
        row = UnitRow(Part.STATE, FULL, 0, (3, 5, 2, 7, 1)[: -(-5 // page_tokens)])
        write_pages(storage, row, "r", 0, 5)
        if damaged is not None:
            storage.view(0, "k")[row.units[-1], 1, 4 % page_tokens].view(torch.uint8)[damaged] ^= 1
        return digest_contents(storage, [row], [Contents(FULL, 0, 5)])[0]

    whole = digest(1)
    assert digest(4) == whole
    for damaged in range(dim * dtype.item_bytes):
        assert digest(1, damaged) != whole
        assert digest(4, damaged) != whole
