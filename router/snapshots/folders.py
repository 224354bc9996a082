"""The snapshot folders of all workers as one: they may share one, or each have its own; keeps nothing itself."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from router.config import RouterConfig
from router.fleet import Fleet
from router.link import Link, LinkState
from router.snapshots.beside import BYTES_INLINE_MAX, ENTRIES_INLINE_MAX, beside
from segue.errors import ServingError, SnapshotNotFound, SnapshotsOff, WorkerUnavailable
from segue.state.snapshot.manifest import Manifest, manifest_from_json
from segue.state.snapshot.names import is_id
from segue.wire import SnapshotSummary

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot, the workers in whose folders it is, and its manifest, also as it was written."""

    links: Sequence[Link]
    manifest: Manifest
    raw: bytes

    @property
    def addresses(self) -> list[str]:
        return [link.address for link in self.links]


@dataclass(frozen=True, slots=True)
class Listed:
    """All snapshots with the addresses of the workers that have them, and the workers that did not say."""

    snapshots: Sequence[tuple[SnapshotSummary, Sequence[str]]]
    silent: Sequence[tuple[str, ServingError]]


class Folders:
    """Every call asks all workers that keep snapshots. Raises SnapshotsOff when none does, or their refusal."""

    def __init__(self, fleet: Fleet, config: RouterConfig) -> None:
        self._fleet = fleet
        self._config = config

    async def listed(self) -> Listed:
        """Raises a worker's error only when no worker answers."""
        timeout_s = self._config.call_timeout_s
        answers, silent = await self._ask(lambda link: link.client.list_snapshots(timeout_s))
        if silent and not answers:
            raise silent[0][1]
        told = [(link.address, stored) for link, stored in answers]
        count = sum(len(stored) for _, stored in told)
        ordered = await beside(count, ENTRIES_INLINE_MAX, partial(_together, told))
        return Listed(ordered, [(link.address, error) for link, error in silent])

    async def find(self, snapshot_id: str) -> FoundSnapshot:
        """Raises SnapshotNotFound when all workers say so, and what else the manifest was refused with."""
        _require_id(snapshot_id)
        timeout_s = self._config.call_timeout_s
        answers, silent = await self._ask(lambda link: link.client.inspect_snapshot(snapshot_id, timeout_s))
        if not answers:
            raise _worst(silent)
        raw = answers[0][1]
        where = f"the manifest of snapshot {snapshot_id}"
        manifest = await beside(len(raw), BYTES_INLINE_MAX, partial(manifest_from_json, raw, where))
        return FoundSnapshot([link for link, _ in answers], manifest, raw)

    async def verify(self, snapshot: FoundSnapshot) -> None:
        """Raises what the worker finds wrong with a payload."""
        snapshot_id = snapshot.manifest.snapshot_id
        client = snapshot.links[0].client
        await client.inspect_snapshot(snapshot_id, self._config.snapshot_timeout_s, verify=True)

    async def delete(self, snapshot_id: str) -> None:
        """Removes it wherever it is. Raises SnapshotNotFound, SnapshotClaimed or what a worker failed with."""
        _require_id(snapshot_id)
        timeout_s = self._config.call_timeout_s
        deleted, silent = await self._ask(lambda link: link.client.delete_snapshot(snapshot_id, timeout_s))
        # Of workers that share a folder one removes it, and the others find nothing.
        failed = [(link, error) for link, error in silent if not isinstance(error, SnapshotNotFound)]
        if failed or not deleted:
            raise _worst(silent)

    async def _ask(
        self, call: Callable[[Link], Awaitable[T]]
    ) -> tuple[list[tuple[Link, T]], list[tuple[Link, ServingError]]]:
        """What each worker answered, and those that refused, or that cannot be asked now."""
        keeping = [link for link in self._fleet.links if link.keeps_snapshots]
        if not keeping:
            raise SnapshotsOff("no worker of this router keeps snapshots: snapshot.folder is not set")
        ready = [link for link in keeping if link.state is LinkState.READY]
        outcomes = await asyncio.gather(*(call(link) for link in ready), return_exceptions=True)
        answers: list[tuple[Link, T]] = []
        refusals: list[tuple[Link, ServingError]] = [
            (link, WorkerUnavailable(f"worker {link.address} is {link.state}: nobody knows what it keeps"))
            for link in keeping
            if link not in ready
        ]
        for link, outcome in zip(ready, outcomes, strict=True):
            if isinstance(outcome, ServingError):
                refusals.append((link, outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers.append((link, outcome))
        return answers, refusals


def _together(
    told: Sequence[tuple[str, Sequence[SnapshotSummary]]],
) -> Sequence[tuple[SnapshotSummary, Sequence[str]]]:
    """What the workers at these addresses have, the oldest first; of what several see, what one can read counts."""
    found: dict[str, tuple[SnapshotSummary, list[str]]] = {}
    for address, stored in told:
        for each in stored:
            before, where = found.get(each.snapshot_id, (each, []))
            where.append(address)
            found[each.snapshot_id] = (each if before.refused else before, where)
    return sorted(found.values(), key=lambda entry: entry[0].age_order)


def _require_id(snapshot_id: str) -> None:
    if not is_id(snapshot_id):
        raise SnapshotNotFound("there is no snapshot of that name")


def _worst(refusals: Sequence[tuple[Link, ServingError]]) -> ServingError:
    """A worker that does not have it says nothing of what another has."""
    errors = [error for _, error in refusals]
    return next((error for error in errors if not isinstance(error, SnapshotNotFound)), errors[0])
