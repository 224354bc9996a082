"""One choice's tokens as the client's text: whole characters, stop strings, and the reports that go with the text."""

from collections.abc import Set

from router.inbox import Arrivals
from router.openai.logprobs import TokenReport
from router.openai.plan import PlannedChoice, TextOptions
from router.piece import Piece, report
from router.prompt_text import PromptText
from router.text.detokenizer import Detokenizer
from router.text.stop_strings import StopStrings
from router.text.token_bytes import TokenBytes


class ChoiceText:
    """Takes a choice's arrivals in order. `stopped_at` is the number of tokens kept, once a stop string was found.

    With `echo` the prompt comes first. Stop strings are looked for behind it.
    """

    def __init__(
        self, token_bytes: TokenBytes, special_ids: Set[int], options: TextOptions, choice: PlannedChoice
    ) -> None:
        sampling = choice.sampling
        self.stopped_at: int | None = None
        self.token_count = 0
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer(
            token_bytes, skipped=special_ids if options.skip_special_tokens else frozenset()
        )
        self._prompt: PromptText | None = None
        if options.echo:
            self._prompt = PromptText(choice.prompt, choice.score_from, self._detokenizer, token_bytes)
        self._stops = (
            StopStrings(options.stops, kept_in_output=options.include_stop, min_tokens=sampling.min_tokens)
            if options.stops is not None
            else None
        )
        # Reports wait for the text that covers their tokens: none is sent of a token that is then cut off.
        self._pending: list[TokenReport] | None = None if sampling.logprobs is None else []
        self._length = 0
        self._released = 0
        self._reported = 0
        # Tokens up to the last one that completed text: what follows it may belong to a stop string.
        self._spelled = 0

    def push(self, arrived: Arrivals) -> Piece:
        """Takes new tokens. What follows a stop string is dropped, and nothing more may be pushed then."""
        if (prompt := self._prompt) is None:
            return self._push_output(arrived)
        piece = prompt.tell() if self._pending is None else prompt.tell_scored(arrived.scores)
        if not prompt.over:
            assert not arrived.token_ids, "tokens came before the prompt was scored"
            return piece
        self._prompt = None
        self._length = self._released = prompt.length
        return piece.then(self._push_output(arrived))

    def _push_output(self, arrived: Arrivals) -> Piece:
        assert self.stopped_at is None, "the output has ended at a stop string"
        if self._stops is None and self._pending is None:
            # The common case: all tokens at once.
            self.token_count += len(arrived.token_ids)
            return Piece(self._detokenizer.push(arrived.token_ids), None)
        parts: list[str] = []
        for place, token_id in enumerate(arrived.token_ids):
            self.token_count += 1
            text = self._detokenizer.push((token_id,))
            if self._pending is not None:
                score = (arrived.logprobs[place], arrived.tops[place])
                self._pending.append(report(self._token_bytes, token_id, self._length, score))
            self._length += len(text)
            self._spelled = self.token_count if text else self._spelled
            parts.append(text if self._stops is None else self._stops.push(text))
            if self._stops is not None and self._stops.match is not None:
                self.stopped_at = self._stops.match.kept_tokens
                break
        return self._piece("".join(parts))

    def finish(self) -> Piece:
        """The output has ended by itself: what was held back."""
        tail = self._detokenizer.flush()
        if self._stops is not None:
            tail = self._stops.finish(tail)
            if self._stops.match is not None:
                self.stopped_at = self._stops.match.kept_tokens
        return Piece(tail, self._take_reports(self.token_count if self.stopped_at is None else self.stopped_at))

    def _piece(self, text: str) -> Piece:
        self._released += len(text)
        if self.stopped_at is not None:
            return Piece(text, self._take_reports(self.stopped_at))
        if text and self._released == self._length:
            return Piece(text, self._take_reports(self._spelled))
        return Piece(text, None if self._pending is None else [])

    def _take_reports(self, token_count: int) -> list[TokenReport] | None:
        """Reports of the tokens before number `token_count` that were not given out yet."""
        if self._pending is None:
            return None
        due = self._pending[: max(0, token_count - self._reported)]
        self._reported += len(due)
        self._pending = self._pending[len(due) :]
        return due
