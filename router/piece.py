"""A part of one choice's text that may go to the client, and the reports of tokens that go with it."""

from dataclasses import dataclass

from router.openai.logprobs import TokenReport, TokenText
from router.text.token_bytes import TokenBytes
from segue.wire import Top


@dataclass(frozen=True, slots=True)
class Piece:
    """What may go to the client now. `reports` is None when no logprobs were asked for."""

    text: str
    reports: list[TokenReport] | None

    def then(self, later: "Piece") -> "Piece":
        """Both as one."""
        if self.reports is None or later.reports is None:
            return Piece(self.text + later.text, None)
        return Piece(self.text + later.text, self.reports + later.reports)


def report(token_bytes: TokenBytes, token_id: int, offset: int, score: tuple[float | None, Top] | None) -> TokenReport:
    """What is said of a token whose text starts at `offset`. `score`: its logprob and alternatives, if it has them."""
    token = _text(token_bytes, token_id)
    if score is None:
        return TokenReport(token, offset, None, ())
    logprob, top = score
    return TokenReport(token, offset, logprob, tuple((_text(token_bytes, other), value) for other, value in top))


def _text(token_bytes: TokenBytes, token_id: int) -> TokenText:
    data = token_bytes[token_id]
    return TokenText(data.decode("utf-8", errors="replace"), data)
