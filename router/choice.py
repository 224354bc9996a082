"""One choice from placement to the last piece of its text, and the counts it leaves behind."""

from collections.abc import AsyncIterator

from router.choice_text import ChoiceText
from router.dispatch import Dispatch
from router.piece import Piece
from segue.batch.request import FinishReason


class Choice:
    """Reads a dispatch to its end. `reason` is set with the last piece, the counts are final then."""

    def __init__(self, index: int, prompt_number: int, dispatch: Dispatch, text: ChoiceText) -> None:
        self.index = index
        self.prompt_number = prompt_number
        self.reason: FinishReason | None = None
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._dispatch = dispatch
        self._text = text

    async def pieces(self) -> AsyncIterator[tuple[Piece, int]]:
        """Text as it comes, each time with the number of new tokens. Raises what stopped the choice."""
        text = self._text
        while self.reason is None:
            before = text.token_count
            arrived = await self._dispatch.take()
            piece = text.push(arrived)
            ended = arrived.ended
            if text.stopped_at is not None:
                # A stop string in the last tokens of an output that has ended anyway leaves nothing to finish.
                usage = ended.usage if ended is not None else await self._dispatch.finish(text.stopped_at)
                self._end(FinishReason.STOP, text.stopped_at, 0 if usage is None else usage.cached_tokens)
            elif ended is not None:
                piece = piece.then(text.finish())
                at_stop = text.stopped_at is not None
                kept = text.token_count if text.stopped_at is None else text.stopped_at
                self._end(FinishReason.STOP if at_stop else ended.reason, kept, ended.usage.cached_tokens)
            yield piece, text.token_count - before

    def close(self) -> None:
        """Nobody reads any more: what still runs is cancelled."""
        self._dispatch.close()

    def _end(self, reason: FinishReason, completion_tokens: int, cached_tokens: int) -> None:
        self.reason = reason
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
