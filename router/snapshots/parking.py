"""Parks the choices of a worker that ends while no other one could go on with them; they wait, and so do their clients.

Where another worker is there, nobody is parked: it takes them with their state, or they end within the drain's budget
and the rest is computed by it. Whether it could read what this one writes is not known here, and a snapshot that it
does not find has cost a disk's time for nothing.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from router.choice import Choice
from router.inbox import Inbox
from router.link import Link, LinkState
from router.shell import Shell
from segue.errors import QueueFull, ServingError, SnapshotNotReady, WorkerUnavailable
from segue.state.snapshot.names import new_id
from segue.wire import TakeSnapshot

log = logging.getLogger("segue.router")


@dataclass(frozen=True, slots=True)
class _Stay:
    """A choice at the worker that has it."""

    choice: Choice
    link: Link
    inbox: Inbox


class Parking:
    """One for all requests of a router. `run` must run beside them."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._config = shell.config
        # Choices that were asked for, by their place at a worker that ends: each is asked for by one task.
        self._asked: set[Inbox] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                there = list(self._leaving())
                self._asked &= {stay.inbox for stay in there}
                for stay in there:
                    if stay.inbox not in self._asked and self._may_ask(stay):
                        self._asked.add(stay.inbox)
                        group.create_task(self._park(stay))
                await self._shell.fleet.wait_change(
                    self._config.reconnect_wait_s if there else self._config.heartbeat_s
                )

    def _leaving(self) -> Iterator[_Stay]:
        """Every choice at a worker from which choices are parked."""
        ending = {link for link in self._shell.fleet.links if self._is_ending(link)}
        if not ending:
            return
        for running in self._shell.running:
            for choice in running.choices:
                if (placed := choice.placed) is not None and placed[0] in ending:
                    yield _Stay(choice, *placed)

    def _is_ending(self, link: Link) -> bool:
        """A router that ends itself has nobody left who would wait."""
        keeps = link.keeps_snapshots and link.state is LinkState.READY
        return keeps and link.ending and not self._shell.draining and self._shell.fleet.is_alone(link)

    def _may_ask(self, stay: _Stay) -> bool:
        """Not before its first token, nor while somebody else's snapshot of it is under way."""
        choice, inbox = stay.choice, stay.inbox
        here = choice.placed == (stay.link, inbox)
        return here and bool(choice.taken) and not inbox.held and not choice.kept.doubtful

    async def _park(self, stay: _Stay) -> None:
        """Asks until the choice has left, or cannot. One that has no whole state now may have one soon."""
        while self._is_ending(stay.link) and stay.choice.placed == (stay.link, stay.inbox):
            if self._may_ask(stay) and not await self._parked(stay):
                return
            await self._shell.fleet.wait_change(self._config.reconnect_wait_s)

    async def _parked(self, stay: _Stay) -> bool:
        """Asks once. Whether to ask again."""
        choice, inbox, snapshot_id = stay.choice, stay.inbox, new_id()
        asked = TakeSnapshot(
            router_id=self._shell.fleet.router_id,
            handle=inbox.handle,
            attempt=inbox.attempt,
            copy=False,
            # What its client has, this router knows when it goes on.
            served=0,
            about=b"{}",
            snapshot_id=snapshot_id,
            parked=True,
        )
        choice.kept.park(snapshot_id)
        try:
            await stay.link.client.take_snapshot(asked, self._config.snapshot_timeout_s)
        except (SnapshotNotReady, QueueFull):
            choice.kept.undoubt(snapshot_id)
            return True
        except WorkerUnavailable as error:
            # It may come to be all the same: whoever takes the choice on looks there first.
            log.warning("nobody knows whether a choice was parked in %s: %s", snapshot_id, error.message)
        except ServingError as error:
            choice.kept.undoubt(snapshot_id)
            log.warning("a choice cannot be parked at worker %s: %s", stay.link.address, error.message)
            return False
        if choice.over:
            # Its client left, or its output had ended, while it was written.
            self._shell.leftovers.discard(snapshot_id)
        return False
