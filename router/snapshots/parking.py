"""Parks the choices of a worker that ends while no other one could go on with them; they wait, and so do their clients.

Where another worker is there, nobody is parked: it takes them with their state, or they end within the drain's budget
and the rest is computed by it. Whether it could read what this one writes is not known here, and a snapshot that it
does not find has cost a disk's time for nothing.
"""

import asyncio
import logging
from collections.abc import Iterator

from router.inbox import Inbox
from router.link import Link, LinkState
from router.shell import Shell
from router.snapshots.export import Target
from segue.errors import QueueFull, ServingError, SnapshotNotReady, WorkerUnavailable
from segue.state.snapshot.names import new_id
from segue.wire import TakeSnapshot

log = logging.getLogger("segue.router")


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
                self._asked &= {target.inbox for target in there}
                for target in there:
                    if target.inbox not in self._asked and self._may_ask(target):
                        self._asked.add(target.inbox)
                        group.create_task(self._park(target))
                await self._shell.fleet.wait_change(
                    self._config.reconnect_wait_s if there else self._config.heartbeat_s
                )

    def _leaving(self) -> Iterator[Target]:
        """Every choice at a worker from which choices are parked."""
        ending = {link for link in self._shell.fleet.links if self._is_ending(link)}
        if not ending:
            return
        for running in self._shell.running:
            for choice, planned in zip(running.choices, running.planned, strict=True):
                if (placed := choice.placed) is not None and placed[0] in ending:
                    yield Target(running, choice, planned, *placed)

    def _is_ending(self, link: Link) -> bool:
        """A router that ends itself has nobody left who would wait."""
        about = link.description
        keeps = about is not None and about.snapshots and link.state is LinkState.READY
        return keeps and link.ending and not self._shell.draining and self._shell.fleet.is_alone(link)

    def _may_ask(self, target: Target) -> bool:
        """Not before its first token, nor while somebody else's snapshot of it is under way."""
        choice, inbox = target.choice, target.inbox
        here = choice.placed == (target.link, inbox)
        return here and bool(choice.taken) and not inbox.held and not choice.kept.doubtful

    async def _park(self, target: Target) -> None:
        """Asks until the choice has left, or cannot. One that has no whole state now may have one soon."""
        while self._is_ending(target.link) and target.choice.placed == (target.link, target.inbox):
            if self._may_ask(target) and not await self._parked(target):
                return
            await self._shell.fleet.wait_change(self._config.reconnect_wait_s)

    async def _parked(self, target: Target) -> bool:
        """Asks once. Whether to ask again."""
        choice, inbox, snapshot_id = target.choice, target.inbox, new_id()
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
            await target.link.client.take_snapshot(asked, self._config.snapshot_timeout_s)
        except (SnapshotNotReady, QueueFull):
            choice.kept.undoubt(snapshot_id)
            return True
        except WorkerUnavailable as error:
            # It may come to be all the same: whoever takes the choice on looks there first.
            log.warning("nobody knows whether a choice was parked in %s: %s", snapshot_id, error.message)
        except ServingError as error:
            choice.kept.undoubt(snapshot_id)
            log.warning("a choice cannot be parked at worker %s: %s", target.link.address, error.message)
            return False
        if choice.over:
            # Its client left, or its output had ended, while it was written.
            self._shell.leftovers.discard(snapshot_id)
        return False
