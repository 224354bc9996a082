"""One call of a decode worker: from the queue to the settled handoff; joins engine events with the handover.

The receiver ends the call: what it has not read yet when the sender ends it would be lost.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from kv_transfer.handover import Handover
from kv_transfer.outbox import Outbox
from kv_transfer.sender_words import (
    Chunk,
    Complete,
    Due,
    Granted,
    Last,
    PromptCheckpoint,
    SenderCommand,
    SenderEvent,
    Unpin,
    Unwanted,
)
from segue.batch.news import Ended
from segue.errors import Cancelled, InvalidRequest, PeerLost, ServingError
from segue.handoff import Beat, CheckpointPushed, Finished, FromReceiver, Start
from segue.ids import Handle

log = logging.getLogger(__name__)


class Serving:
    """Owned by the event loop. `put` takes commands for the engine thread."""

    def __init__(
        self,
        handle: Handle,
        attempt: int,
        handover: Handover,
        outbox: Outbox,
        put: Callable[[SenderCommand], None],
        *,
        heartbeat_s: float,
        silence_s: float,
    ) -> None:
        self._handle = handle
        self._attempt = attempt
        self._handover = handover
        self._outbox = outbox
        self._put = put
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._computed = 0
        self._granted = False
        self._complete = False
        self._left = False

    def on_event(self, event: SenderEvent) -> None:
        """The engine thread's word."""
        match event:
            case Due() if not self._left:
                self._handover.ask(event.prompt_tokens, event.checkpoint)
            case Chunk():
                self._computed = event.now
                self._handover.push(event.computed, event.now, event.rows)
            case Complete():
                self._complete = True
                self._handover.finish(Finished(None, event.token, event.usage, event.digests))
                self._follow(event.checkpoint)
            case Last():
                self._outbox.put(Finished(None, event.token, event.usage, reason=event.reason.value))
                self._handover.abandon(Cancelled("the first token ended the output"))
            case Ended():
                self._handover.abandon(event.error or Cancelled("the request was cancelled"))

    def _follow(self, checkpoint: PromptCheckpoint | None) -> None:
        """What comes after the state, off the way of the first token."""
        if not self._handover.wants_checkpoint:
            return
        if checkpoint is None:
            self._handover.skip_checkpoint()
            return
        self._handover.push_checkpoint(
            checkpoint.rows, lambda ticket: CheckpointPushed(ticket, checkpoint.depth, checkpoint.digests)
        )

    async def listen(self, start: Start, messages: AsyncIterator[FromReceiver]) -> None:
        """Takes what follows `start` until the receiver ends the call. Raises when it is silent for too long."""
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    message = await anext(messages, None)
            except TimeoutError:
                raise PeerLost(f"the receiver said nothing for {self._silence_s} s") from None
            match message:
                case None:
                    return
                case Start():
                    if message != start:
                        raise InvalidRequest("a handoff is started once a call")
                case _:
                    self._handover.take(message)

    async def start_when_granted(self) -> None:
        """Passes the grant on to the engine."""
        try:
            outgoing = await self._handover.granted
        except ServingError as error:
            log.info("handle %d is not granted: %s", self._handle, error.message)
            return
        self._granted = True
        self._put(Granted(self._handle, self._attempt, outgoing.plan))

    async def beat(self) -> None:
        """Signs of life: of this worker, and, once there is a promise, of the request."""
        sequence = 0
        while True:
            await asyncio.sleep(self._heartbeat_s)
            sequence += 1
            self._outbox.put(Beat(sequence))
            if self._granted:
                self._handover.progress(self._computed)

    def leave(self) -> None:
        """The call has ended: nothing more is asked for or written."""
        self._left = True
        self._handover.abandon(Cancelled("the receiver has ended the call"))
        if self._handover.granted.done():
            # Whoever waited for it may have been ended first; nobody else wants to know.
            self._handover.granted.exception()

    async def release_when_settled(self) -> None:
        """Gives the pages back once nothing reads them, whether they have been handed over or not."""
        await self._handover.settled
        if not self._complete:
            self._put(Unwanted(self._handle, self._attempt))
        self._put(Unpin(self._handle, delivered=self._complete and self._handover.error is None))
