"""The prompt as the beginning of a choice's text (`echo`), told as far as the scores of its tokens have come."""

from collections.abc import Sequence

from router.openai.logprobs import TokenReport
from router.piece import Piece, report
from router.text.detokenizer import Detokenizer
from router.text.token_bytes import TokenBytes
from segue.wire import Top


class PromptText:
    """One prompt. `length` is how much text has been told of it, in characters.

    Tokens up to `score_from` have no score, nor has any where that is None; they are told with the first call.
    """

    def __init__(
        self, prompt: Sequence[int], score_from: int | None, detokenizer: Detokenizer, token_bytes: TokenBytes
    ) -> None:
        self.length = 0
        self._prompt = prompt
        self._unscored = len(prompt) if score_from is None else score_from + 1
        self._detokenizer = detokenizer
        self._token_bytes = token_bytes
        self._told = 0

    @property
    def over(self) -> bool:
        """Whether all of it has been told."""
        return self._told == len(self._prompt)

    def tell(self) -> Piece:
        """All of it, for a client that wants no logprobs."""
        text = self._detokenizer.push(self._prompt)
        self._told, self.length = len(self._prompt), len(text)
        return Piece(text, None)

    def tell_scored(self, scores: Sequence[tuple[float, Top]]) -> Piece:
        """The part that these next scores belong to."""
        parts: list[str] = []
        reports: list[TokenReport] = []
        wanted: list[tuple[float, Top] | None] = [*[None] * (self._unscored - self._told), *scores]
        for score in wanted:
            token_id = self._prompt[self._told]
            reports.append(report(self._token_bytes, token_id, self.length, score))
            text = self._detokenizer.push((token_id,))
            parts.append(text)
            self.length += len(text)
            self._told += 1
        return Piece("".join(parts), reports)
