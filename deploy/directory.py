"""Who serves, as far as they said so lately: entries under leases; pure policy, knows neither Ray nor addresses' use.

It keeps nothing across its own death: whoever serves says so again within a heartbeat, and until all had time to do so
the directory says that it may not know everybody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What a process is: a router, or a worker in one of the roles that engines have."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One serving process. `member_id` is new at every start; `fingerprint` groups those that can exchange state."""

    member_id: str
    part: Part
    address: str
    pid: int
    node: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Membership:
    """Everybody whose lease runs, in the order in which they came.

    `complete` is false as long as somebody may serve who had no time to say so since the directory began.
    """

    entries: tuple[Entry, ...]
    complete: bool

    def of(self, *parts: Part) -> tuple[Entry, ...]:
        """Those that are one of these."""
        return tuple(entry for entry in self.entries if entry.part in parts)


class Directory:
    """Entries and when their leases end. `clock` gives seconds that only grow."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._began = clock()
        self._entries: dict[str, tuple[Entry, float]] = {}

    def beat(self, entry: Entry) -> None:
        """Enters a process, or renews its lease."""
        self._entries[entry.member_id] = (entry, self._clock() + self._lease_s)

    def leave(self, member_id: str) -> None:
        """Takes a process out at once; one that is not there is no mistake, its lease may have ended."""
        self._entries.pop(member_id, None)

    def members(self) -> Membership:
        """Everybody whose lease runs."""
        now = self._clock()
        self._entries = {member: kept for member, kept in self._entries.items() if kept[1] > now}
        entries = tuple(entry for entry, _ in self._entries.values())
        return Membership(entries, complete=now - self._began >= self._lease_s)
