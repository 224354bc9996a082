"""Answers one planned request: runs its choices, streams them as events or collects them into one body."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import TypeVar

from starlette.types import Send

from router.choice import Choice
from router.metrics import Metrics
from router.openai.events import DONE, Format, Outcome, error_event, finish_word
from router.openai.logprobs import TokenReport
from segue.errors import ServingError
from segue.wire import Usage

log = logging.getLogger("segue.router")
T = TypeVar("T")

# A client that takes nothing for this long after its request's deadline is not waited for any longer.
SEND_GRACE_S = 10.0

_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Response:
    """One request's choices on their way to its client. `close` must follow `stream` or `collect` in every case."""

    def __init__(
        self, choices: Sequence[Choice], prompt_lengths: Sequence[int], form: Format, metrics: Metrics, model: str
    ) -> None:
        self._choices = choices
        self._prompt_lengths = prompt_lengths
        self._form = form
        self._metrics = metrics
        self._model = model
        self._begun_at = time.monotonic()
        self._tokens_at: dict[int, float] = {}
        self._started = False
        self._sending = asyncio.Lock()

    async def collect(self) -> bytes:
        """One body, when all choices have ended. Raises what stopped any of them."""
        outcomes = await _together([self._collect(choice) for choice in self._choices])
        usage = self._usage()
        self._served(usage)
        return self._form.body(outcomes, usage)

    async def stream(self, send: Send, deadline: float, include_usage: bool) -> None:
        """Sends events as text comes.

        Until the first of them a failure is raised, so that it becomes a status; later it becomes the last event.
        """
        try:
            async with asyncio.timeout_at(deadline + SEND_GRACE_S):
                try:
                    await _together([self._pump(choice, send) for choice in self._choices])
                    usage = self._usage()
                    last = self._form.usage(usage) + DONE if include_usage else DONE
                    self._served(usage)
                except ServingError as error:
                    if not self._started:
                        raise
                    self._metrics.request_failed(error)
                    last = error_event(error)
                await send({"type": "http.response.body", "body": last})
        except TimeoutError:
            # The response stays without its end; the connection is closed for that.
            log.warning("a client did not take what was sent to it within the time of its request")

    def close(self) -> None:
        """Cancels whatever still runs."""
        for choice in self._choices:
            choice.close()

    async def _collect(self, choice: Choice) -> Outcome:
        texts: list[str] = []
        reports: list[TokenReport] = []
        asked = False
        async for piece, token_count in choice.pieces():
            self._note_tokens(choice, token_count)
            texts.append(piece.text)
            if piece.reports is not None:
                asked = True
                reports += piece.reports
        assert choice.reason is not None, "a choice ends with a reason"
        return Outcome(
            index=choice.index,
            text="".join(texts),
            reports=reports if asked else None,
            reason=choice.reason,
            snapshot_id=choice.snapshot_id,
        )

    async def _pump(self, choice: Choice, send: Send) -> None:
        index, form = choice.index, self._form
        opened = False
        async for piece, token_count in choice.pieces():
            self._note_tokens(choice, token_count)
            event = b""
            if not opened:
                event = form.opening(index)
                opened = True
            if piece.text or piece.reports:
                event += form.text(index, piece.text, piece.reports)
            if choice.reason is not None:
                event += form.closing(index, choice.reason, choice.snapshot_id)
            if event:
                async with self._sending:
                    await self._start(send)
                    await send({"type": "http.response.body", "body": event, "more_body": True})

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": list(_EVENT_STREAM)})

    def _note_tokens(self, choice: Choice, count: int) -> None:
        if count == 0:
            return
        now = time.monotonic()
        before = self._tokens_at.get(choice.index)
        if before is None:
            self._metrics.first_token(self._model, now - self._begun_at)
        else:
            self._metrics.next_tokens(self._model, now - before, count)
        self._tokens_at[choice.index] = now

    def _usage(self) -> Usage:
        """A prompt counts once however many choices answer it; its cached part is that of the first of them."""
        first = {choice.prompt_number: choice for choice in reversed(self._choices)}
        return Usage(
            sum(self._prompt_lengths),
            sum(choice.completion_tokens for choice in self._choices),
            sum(min(choice.cached_tokens, self._prompt_lengths[number]) for number, choice in first.items()),
        )

    def _served(self, usage: Usage) -> None:
        for choice in self._choices:
            assert choice.reason is not None, "a choice ends with a reason"
            self._metrics.choice_served(self._model, finish_word(choice.reason))
        self._metrics.request_served(self._model, time.monotonic() - self._begun_at, usage)


async def _together(works: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """All results; the first failure cancels the rest and is raised."""
    if len(works) == 1:
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        if isinstance(first, ServingError):
            raise first from failed
        raise
    return [task.result() for task in tasks]
