"""Log-probabilities in the two shapes OpenAI gives them; knows nothing of tokenizers but the reports it is given."""

from collections.abc import Sequence
from dataclasses import dataclass

# JSON has no infinity; OpenAI says this for a token that could not be chosen.
LOGPROB_MIN = -9999.0


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as text (replacement characters where it is no whole one) and as its bytes."""

    text: str
    data: bytes


@dataclass(frozen=True, slots=True)
class TokenReport:
    """One token, its logprob, and the best alternatives, best first. `offset` is where its text starts.

    `logprob` is None for a prompt token that has none: the first, and what was not to be scored. It is so too for a
    token out of a snapshot whose writer did not know it.
    """

    token: TokenText
    offset: int
    logprob: float | None
    top: tuple[tuple[TokenText, float], ...]


def chat_logprobs(reports: Sequence[TokenReport]) -> dict[str, object]:
    """`choices[].logprobs` of chat completions."""
    content = []
    for report in reports:
        entry = _entry(report.token, report.logprob)
        entry["top_logprobs"] = [_entry(token, logprob) for token, logprob in report.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def completion_logprobs(reports: Sequence[TokenReport]) -> dict[str, object]:
    """`choices[].logprobs` of completions."""
    return {
        "tokens": [report.token.text for report in reports],
        "token_logprobs": [None if report.logprob is None else _finite(report.logprob) for report in reports],
        "top_logprobs": [_alternatives(report) for report in reports],
        "text_offset": [report.offset for report in reports],
    }


def _alternatives(report: TokenReport) -> dict[str, float] | None:
    if report.logprob is None:
        return None
    return {token.text: _finite(logprob) for token, logprob in report.top}


def _entry(token: TokenText, logprob: float | None) -> dict[str, object]:
    return {
        "token": token.text,
        "logprob": None if logprob is None else _finite(logprob),
        "bytes": list(token.data),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)
