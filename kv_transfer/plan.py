"""What travels from one worker to another for one prompt, and when; a pure function of terms that both ends compute.

Pages are named by their absolute index in the prompt. Nothing here knows which units they lie in.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from segue.errors import TransferRefused
from segue.handoff import Part, Terms
from segue.state.coverage import Coverage
from segue.state.layout import Shard, UnitLayout
from segue.state.needs import first_window_page, page_count
from segue.state.spec import ComponentName

COVERAGE = Coverage("the transfer plan", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)


@dataclass(frozen=True, slots=True)
class Side:
    """The form of one worker's state: rank 0's layout of each component, tokens a page, W."""

    layouts: tuple[UnitLayout, ...]
    page_tokens: int
    window: int | None

    def __post_init__(self) -> None:
        COVERAGE.require(layout.component for layout in self.layouts)


@dataclass(frozen=True, slots=True)
class ByteRun:
    """A run of bytes within a unit, the same in every unit of a component.

    From what one rank has of it at the sender to what one rank has at the receiver.
    """

    source_offset: int
    target_offset: int
    bytes: int
    source_rank: int = 0
    target_rank: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Pages [first, stop) of one component; a slot is page 0."""

    part: Part
    component: ComponentName
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Contents:
    """Token positions [start, stop) of a component that a part carries: what its digest covers."""

    component: ComponentName
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Which pages travel at which moment, and which bytes of each."""

    terms: Terms
    page_tokens: int
    window: int | None
    runs: Mapping[ComponentName, tuple[ByteRun, ...]]

    def chunk(self, computed: int, now: int) -> tuple[Piece, ...]:
        """What can travel once [0, now) is computed and the pieces up to `computed` have been taken.

        Full pages as they complete; with the prompt's end its last partial page, the window and the recurrent state.
        """
        assert 0 <= computed < now <= self.terms.prompt_tokens, (computed, now)
        ended = now == self.terms.prompt_tokens
        first = max(self.terms.held_tokens, computed) // self.page_tokens
        stop = page_count(now, self.page_tokens) if ended else now // self.page_tokens
        return tuple(
            piece
            for component in self.runs
            for piece in self._state(component, first, stop, ended)
            if piece.first < piece.stop
        )

    def state(self) -> tuple[Piece, ...]:
        """Everything of the state part, as one chunk would send it."""
        return self.chunk(0, self.terms.prompt_tokens)

    def checkpoint(self) -> tuple[Piece, ...]:
        """What follows the state: the slot after c_k tokens, and window pages below it that the state left out."""
        depth = self.terms.checkpoint
        if depth is None or depth == self.terms.prompt_tokens:
            return ()
        pieces = []
        for component in self.runs:
            match component:
                case ComponentName.FULL:
                    continue
                case ComponentName.WINDOW:
                    assert self.window is not None
                    first = first_window_page(depth, self.window, self.page_tokens)
                    stop = min(page_count(depth, self.page_tokens), self._first_window_page())
                    pieces.append(Piece(Part.CHECKPOINT, component, first, max(first, stop)))
                case ComponentName.RECURRENT:
                    pieces.append(Piece(Part.CHECKPOINT, component, 0, 1))
        return tuple(piece for piece in pieces if piece.first < piece.stop)

    def contents(self, part: Part) -> tuple[Contents, ...]:
        """What the digests of a part cover. What the receiver held before is not in it."""
        pieces, depth = self.checkpoint(), self.terms.checkpoint
        if part is Part.STATE or depth is None:
            pieces, depth = self.state(), self.terms.prompt_tokens
        return tuple(self._contents(piece, depth) for piece in pieces)

    def room(self, headroom_tokens: int) -> tuple[Piece, ...]:
        """Units that the receiver sets aside: what travels, and pages for the first tokens that it will decode."""
        reach = page_count(self.terms.prompt_tokens + headroom_tokens, self.page_tokens)
        room = []
        for component in self.runs:
            match component:
                case ComponentName.FULL:
                    room.append(Piece(Part.STATE, component, self.terms.held_tokens // self.page_tokens, reach))
                case ComponentName.WINDOW:
                    room.append(Piece(Part.STATE, component, self._first_window_page(), reach))
                case ComponentName.RECURRENT:
                    room.append(Piece(Part.STATE, component, 0, 1))
        return (*room, *self.checkpoint())

    def digest(self) -> str:
        """Equal at both ends if and only if they would move the same bytes."""
        pieces = [
            [piece.part.value, piece.component.value, piece.first, piece.stop]
            for piece in (*self.state(), *self.checkpoint())
        ]
        runs = [
            [component.value, run.source_rank, run.source_offset, run.target_rank, run.target_offset, run.bytes]
            for component, runs in self.runs.items()
            for run in runs
        ]
        terms = [self.terms.prompt_tokens, self.terms.held_tokens, self.terms.checkpoint]
        text = json.dumps([terms, self.page_tokens, self.window, pieces, runs])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _first_window_page(self) -> int:
        """First page that meets [n - W, n); the first page of all later tokens where W is 0."""
        return first_window_page(self.terms.prompt_tokens, self.window or 0, self.page_tokens)

    def _contents(self, piece: Piece, depth: int) -> Contents:
        if piece.component is ComponentName.RECURRENT:
            return Contents(piece.component, 0, depth)
        start, stop = piece.first * self.page_tokens, min(depth, piece.stop * self.page_tokens)
        if piece.component is ComponentName.WINDOW:
            start = max(start, depth - (self.window or 0))
        return Contents(piece.component, start, stop)

    def _state(self, component: ComponentName, first: int, stop: int, ended: bool) -> Iterator[Piece]:
        if component is ComponentName.FULL:
            yield Piece(Part.STATE, component, first, stop)
        elif ended and component is ComponentName.WINDOW:
            yield Piece(Part.STATE, component, self._first_window_page(), stop if self.window else 0)
        elif ended:
            yield Piece(Part.STATE, component, 0, 1)


def make_plan(terms: Terms, source: Side, target: Side) -> TransferPlan:
    """Raises TransferRefused, naming both values, where the two sides or the terms do not fit."""
    for name, ours, theirs in (
        ("page_tokens", source.page_tokens, target.page_tokens),
        ("window", source.window, target.window),
        ("components", _components(source), _components(target)),
    ):
        if ours != theirs:
            raise TransferRefused(f"the sender's {name} is {ours}, the receiver's {theirs}")
    _check_terms(terms, source.page_tokens)
    runs = {
        ours.component: byte_runs(ours, theirs) for ours, theirs in zip(source.layouts, target.layouts, strict=True)
    }
    return TransferPlan(terms, source.page_tokens, source.window, runs)


def byte_runs(source: UnitLayout, target: UnitLayout) -> tuple[ByteRun, ...]:
    """All of a unit, found by global head group, whatever the degrees of tensor parallelism are.

    A rank of the receiver gets each of its groups from the first rank of the sender that has it: so what ranks share is
    the same on all of them. Raises TransferRefused for groups of unlike form.
    """
    for name in ("total_groups", "group_bytes", "tokens"):
        ours, theirs = getattr(source, name), getattr(target, name)
        if ours != theirs:
            raise TransferRefused(f"{name} of {source.component} are {ours} at the sender, {theirs} at the receiver")
    return _runs(source.total_groups, source.group_bytes, source.shard.tp_size, target.shard.tp_size)


@lru_cache(maxsize=64)
def _runs(total: int, size: int, senders: int, receivers: int) -> tuple[ByteRun, ...]:
    """Those of `total` head groups of `size` bytes: the same for every prompt that passes between two workers."""
    source = [Shard(rank, senders) for rank in range(senders)]
    runs: list[ByteRun] = []
    for receiver in (Shard(rank, receivers) for rank in range(receivers)):
        first = receiver.first_group(total)
        for group in range(first, first + receiver.groups(total)):
            rank = source[0].holders(total, group).start
            source_offset, target_offset = (group - source[rank].first_group(total)) * size, (group - first) * size
            run = ByteRun(source_offset, target_offset, size, rank, receiver.tp_rank)
            if runs and _continues(runs[-1], run):
                before = runs.pop()
                run = replace(before, bytes=before.bytes + size)
            runs.append(run)
    return tuple(runs)


def _continues(before: ByteRun, run: ByteRun) -> bool:
    """Whether a run goes on where the other one ends, on both sides."""
    ends = (before.source_offset + before.bytes, before.target_offset + before.bytes)
    ranks = (before.source_rank, before.target_rank)
    return ends == (run.source_offset, run.target_offset) and ranks == (run.source_rank, run.target_rank)


def _check_terms(terms: Terms, page_tokens: int) -> None:
    n, held, checkpoint = terms.prompt_tokens, terms.held_tokens, terms.checkpoint
    if n < 1 or not 0 <= held <= n or held % page_tokens:
        raise TransferRefused(f"a prompt of {n} tokens, {held} of them held in pages of {page_tokens}, makes no sense")
    if checkpoint is not None and (not 0 < checkpoint <= n or checkpoint % page_tokens):
        raise TransferRefused(f"a checkpoint after {checkpoint} of {n} tokens is not on a page of {page_tokens}")


def _components(side: Side) -> Sequence[str]:
    return [layout.component.value for layout in side.layouts]
