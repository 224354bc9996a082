"""What travels: every byte that the receiver lacks, once, at the first moment it can; and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.plan import ByteRun, Piece, Side, TransferPlan, byte_runs, make_plan
from segue.errors import TransferRefused
from segue.handoff import Part, Terms
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName, DType, ModelState, StateTensor

FULL, WINDOW, RECURRENT = ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT


def side(page_tokens: int = 4, window: int | None = 6, shard: Shard | None = None, names: str = "fwr") -> Side:
    tensors = [StateTensor(0, "k", FULL, 4, (8,), DType.FLOAT32)] if "f" in names else []
    if "w" in names and window is not None:
        tensors.append(StateTensor(1, "k", WINDOW, 4, (8,), DType.BFLOAT16, window))
    if "r" in names:
        tensors.append(StateTensor(2, "matrix", RECURRENT, 4, (4, 4), DType.FLOAT32))
    state = ModelState.of(tensors)
    return Side(layouts(state, page_tokens, shard or Shard()), page_tokens, state.window)


def plan(terms: Terms, page_tokens: int = 4, window: int | None = 6, names: str = "fwr") -> TransferPlan:
    both = side(page_tokens, window, names=names)
    return make_plan(terms, both, both)


@st.composite
def plans(draw: st.DrawFn) -> TransferPlan:
    page_tokens = draw(st.sampled_from([1, 2, 4, 16]))
    n = draw(st.integers(1, 60))
    held = draw(st.integers(0, n // page_tokens)) * page_tokens
    grid = range(page_tokens, n + 1, page_tokens)
    checkpoint = draw(st.sampled_from([None, *grid]))
    window = draw(st.sampled_from([None, 0, 1, 3, 6, 33]))
    return plan(Terms(n, held, checkpoint), page_tokens, window)


def pages(pieces: Sequence[Piece], component: ComponentName, part: Part = Part.STATE) -> list[int]:
    own = [piece for piece in pieces if piece.component is component and piece.part is part]
    return [page for piece in own for page in range(piece.first, piece.stop)]


def meeting(start: int, stop: int, page_tokens: int) -> set[int]:
    """Pages that hold any position of [start, stop), counted one position at a time."""
    return {position // page_tokens for position in range(max(0, start), stop)}


@given(plans(), st.data())
def test_any_chunking_sends_the_same_pages_once(made: TransferPlan, data: st.DataObject) -> None:
    n = made.terms.prompt_tokens
    ends = sorted({*data.draw(st.sets(st.integers(1, n), max_size=6)), n})
    sent = [piece for start, end in zip([0, *ends], ends, strict=False) for piece in made.chunk(start, end)]
    for component in made.runs:
        assert pages(sent, component) == pages(made.state(), component)


@given(plans())
def test_the_state_is_what_the_receiver_lacks_and_no_more(made: TransferPlan) -> None:
    n, size, state = made.terms.prompt_tokens, made.page_tokens, made.state()
    assert set(pages(state, FULL)) == meeting(made.terms.held_tokens, n, size)
    if made.window is not None:
        assert set(pages(state, WINDOW)) == meeting(n - made.window, n, size)
    assert pages(state, RECURRENT) == [0]


@given(plans(), st.data())
def test_a_full_page_travels_with_the_chunk_that_completes_it(made: TransferPlan, data: st.DataObject) -> None:
    n, size = made.terms.prompt_tokens, made.page_tokens
    end = data.draw(st.integers(1, n))
    sent = pages(made.chunk(0, end), FULL)
    if end < n:
        assert all((page + 1) * size <= end for page in sent)
        assert {piece.component for piece in made.chunk(0, end)} <= {FULL}


@given(plans())
def test_the_checkpoint_brings_what_it_needs_below_it_and_nothing_twice(made: TransferPlan) -> None:
    n, size, depth = made.terms.prompt_tokens, made.page_tokens, made.terms.checkpoint
    pieces = made.checkpoint()
    if depth is None or depth == n:
        assert pieces == ()
        return
    assert pages(pieces, RECURRENT, Part.CHECKPOINT) == [0]
    assert pages(pieces, FULL, Part.CHECKPOINT) == []
    if made.window is not None:
        below = meeting(depth - made.window, depth, size)
        sent = pages(pieces, WINDOW, Part.CHECKPOINT)
        assert set(sent) | set(pages(made.state(), WINDOW)) >= below
        assert not set(sent) & set(pages(made.state(), WINDOW))
        assert set(sent) <= below


@given(plans(), st.integers(0, 40))
def test_room_covers_what_travels_and_the_first_tokens_after(made: TransferPlan, headroom: int) -> None:
    room, n, size = made.room(headroom), made.terms.prompt_tokens, made.page_tokens
    for part in Part:
        for component in made.runs:
            travelling = pages((*made.state(), *made.checkpoint()), component, part)
            assert set(travelling) <= set(pages(room, component, part))
    assert set(pages(room, FULL)) == meeting(made.terms.held_tokens, n + headroom, size)
    if made.window is not None:
        assert set(pages(room, WINDOW)) >= meeting(n, n + headroom, size)


@given(plans())
def test_digests_cover_only_positions_that_travel(made: TransferPlan) -> None:
    for part, pieces in ((Part.STATE, made.state()), (Part.CHECKPOINT, made.checkpoint())):
        covered = {one.component: one for one in made.contents(part)} if pieces else {}
        assert set(covered) == {piece.component for piece in pieces}
        for component, one in covered.items():
            if component is not RECURRENT:
                held = meeting(one.start, one.stop, made.page_tokens)
                assert held <= set(pages(pieces, component, part))


@given(plans(), plans())
def test_plans_have_one_digest_if_and_only_if_they_are_equal(one: TransferPlan, other: TransferPlan) -> None:
    same = (one.terms, one.page_tokens, one.window) == (other.terms, other.page_tokens, other.window)
    assert (one.digest() == other.digest()) == same


def test_a_prompt_of_one_token_is_one_page_of_each_and_the_slot() -> None:
    state = plan(Terms(1, 0)).state()
    assert [(piece.component, piece.first, piece.stop) for piece in state] == [
        (FULL, 0, 1),
        (WINDOW, 0, 1),
        (RECURRENT, 0, 1),
    ]


@pytest.mark.parametrize("names", ["f", "fw", "fr", "wr", "r"])
def test_only_components_that_the_model_has_are_waited_for(names: str) -> None:
    made = plan(Terms(9, 0, 8), names=names)
    assert "".join(piece.component.value[0] for piece in made.state()) == names


@pytest.mark.parametrize(
    "terms", [Terms(0, 0), Terms(8, 12), Terms(8, 3), Terms(8, 0, 12), Terms(8, 0, 3), Terms(8, -4)]
)
def test_terms_that_make_no_sense_are_refused(terms: Terms) -> None:
    with pytest.raises(TransferRefused):
        plan(terms)


@pytest.mark.parametrize(
    ("theirs", "name"),
    [(side(page_tokens=8), "page_tokens"), (side(window=7), "window"), (side(names="fw"), "components")],
)
def test_unlike_sides_are_refused_by_name_and_values(theirs: Side, name: str) -> None:
    with pytest.raises(TransferRefused, match=f"the sender's {name} is .*, the receiver's "):
        make_plan(Terms(4, 0), side(), theirs)


DEGREES = (1, 2, 4)


@pytest.mark.parametrize("sender", DEGREES)
@pytest.mark.parametrize("receiver", DEGREES)
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_every_rank_gets_each_of_its_groups_once_from_a_rank_that_has_it(
    sender: int, receiver: int, groups: int
) -> None:
    ours, theirs = (replace(side(shard=Shard(0, tp)).layouts[0], total_groups=groups) for tp in (sender, receiver))
    got: dict[int, list[int]] = {rank: [] for rank in range(receiver)}
    senders: dict[int, list[int]] = {}
    for run in byte_runs(ours, theirs):
        source, target = ours.of_ranks[run.source_rank], theirs.of_ranks[run.target_rank]
        assert run.source_offset + run.bytes <= source.unit_bytes
        assert run.target_offset + run.bytes <= target.unit_bytes
        first, taken = (
            (form.first_group * form.group_bytes + offset) // form.group_bytes
            for form, offset in ((source, run.source_offset), (target, run.target_offset))
        )
        assert first == taken, "a group arrives as another one"
        for group in range(first, first + run.bytes // ours.group_bytes):
            got[run.target_rank].append(group)
            senders.setdefault(group, []).append(run.source_rank)
    for rank, found in got.items():
        form = theirs.of_ranks[rank]
        assert found == list(range(form.first_group, form.first_group + form.groups))
    for group, ranks in senders.items():
        assert set(ranks) == {ours.shard.holders(groups, group).start}, "copies of a group come from one rank"


def test_between_equal_degrees_a_rank_sends_to_the_same_rank_in_one_run() -> None:
    ours = replace(side(shard=Shard(0, 2)).layouts[0], total_groups=4)
    assert byte_runs(ours, ours) == tuple(ByteRun(0, 0, ours.unit_bytes, rank, rank) for rank in range(2))


def test_the_same_size_split_otherwise_is_refused() -> None:
    ours = side().layouts[0]
    with pytest.raises(TransferRefused, match="total_groups of full are"):
        byte_runs(ours, replace(ours, total_groups=2, group_bytes=2 * ours.group_bytes))
