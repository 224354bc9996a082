"""One choice from placement to the last piece of its text, and the counts it leaves behind."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from router.choice_text import ChoiceText
from router.dispatch import Dispatch
from router.inbox import Inbox
from router.link import Link
from router.piece import Piece
from router.snapshot_leg import SnapshotLeg
from segue.batch.request import FinishReason


@dataclass(frozen=True, slots=True)
class Sent:
    """How much of a choice its client has: characters of its text, and reports of tokens."""

    characters: int = 0
    reports: int = 0


@dataclass(frozen=True, slots=True)
class Earlier:
    """What there was of a choice before: what the client had of it, and what of its output it had not.

    `cached_tokens` are those of the prompt whose state was reused when it was computed.
    """

    sent: Sent
    unsent: Piece
    cached_tokens: int


class Choice:
    """Reads a dispatch to its end. `reason` is set with the last piece, the counts are final then.

    `text` has taken the output that the dispatch begins with. When the choice went to a snapshot, `snapshot_id` is set.
    """

    def __init__(
        self, index: int, prompt_number: int, dispatch: Dispatch, text: ChoiceText, earlier: Earlier | None = None
    ) -> None:
        self.index = index
        self.prompt_number = prompt_number
        self.reason: FinishReason | None = None
        self.snapshot_id = ""
        self.completion_tokens = 0
        self.cached_tokens = 0
        sent = Sent() if earlier is None else earlier.sent
        self._sent_characters, self._sent_reports = sent.characters, sent.reports
        self._earlier = earlier
        self._dispatch = dispatch
        self._text = text

    @property
    def taken(self) -> Sequence[int]:
        """The output so far."""
        return self._dispatch.output

    @property
    def sent(self) -> Sent:
        """How much of it was given out so far."""
        return Sent(self._sent_characters, self._sent_reports)

    @property
    def placed(self) -> tuple[Link, Inbox] | None:
        """The worker that has the choice now, and where its news come to."""
        return self._dispatch.placed

    async def pieces(self) -> AsyncIterator[tuple[Piece, int]]:
        """Text as it comes, each time with the number of new tokens. Raises what stopped the choice."""
        text = self._text
        unsent = None if self._earlier is None else self._earlier.unsent
        while self.reason is None:
            before = text.token_count
            arrived = await self._dispatch.take()
            ended = arrived.ended
            if ended is not None and ended.snapshot_id:
                # Whoever asked for the snapshot said what the client has: that must stay true.
                self.snapshot_id = ended.snapshot_id
                self._end(FinishReason.MOVED, text.token_count, ended.usage.cached_tokens)
                yield Piece("", None), 0
                return
            # A stop string may stand in what was not sent before; nothing that comes now belongs to the output then.
            piece = text.push(arrived) if text.stopped_at is None else None
            if unsent is not None:
                piece, unsent = unsent if piece is None else unsent.then(piece), None
            assert piece is not None, "an output that stopped has ended"
            if text.stopped_at is not None:
                # A stop string in the last tokens of an output that has ended anyway leaves nothing to finish.
                usage = ended.usage if ended is not None else await self._dispatch.finish(text.stopped_at)
                self._end(FinishReason.STOP, text.stopped_at, 0 if usage is None else usage.cached_tokens)
            elif ended is not None:
                piece = piece.then(text.finish())
                at_stop = text.stopped_at is not None
                kept = text.token_count if text.stopped_at is None else text.stopped_at
                self._end(FinishReason.STOP if at_stop else ended.reason, kept, ended.usage.cached_tokens)
            self._sent_characters += len(piece.text)
            self._sent_reports += len(piece.reports or ())
            yield piece, text.token_count - before

    @property
    def kept(self) -> SnapshotLeg:
        """What is known of a snapshot that the choice is in, or may be in."""
        return self._dispatch.kept

    @property
    def over(self) -> bool:
        """Whether nobody waits for its news any more."""
        return self._dispatch.over

    def close(self) -> None:
        """Nobody reads any more: what still runs is cancelled."""
        self._dispatch.close()

    def _end(self, reason: FinishReason, completion_tokens: int, cached_tokens: int) -> None:
        self.reason = reason
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens if self._earlier is None else self._earlier.cached_tokens
