"""How two workers introduce themselves: who they are and where their memory lies; never writes it."""

import hashlib
from dataclasses import dataclass
from enum import Enum

from segue.errors import TransferRefused
from segue.ids import WorkerId
from segue.state.spec import ComponentName


@dataclass(frozen=True, slots=True)
class ArenaPart:
    """What one tensor-parallel rank has of one component's units in an arena: that of unit i lies at `base + i *
    unit_bytes`.
    """

    component: ComponentName
    base: int
    unit_bytes: int
    units: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class ArenaMap:
    """Where every component's units lie in one worker's arena of `bytes` bytes. A unit has a part on every rank."""

    bytes: int
    parts: tuple[ArenaPart, ...]

    def part(self, component: ComponentName, rank: int = 0) -> ArenaPart:
        """Raises TransferRefused when the arena has no such component, or no such rank."""
        for part in self.parts:
            if part.component is component and part.rank == rank:
                return part
        raise TransferRefused(f"the arena has no component {component.value} of rank {rank}")

    def ranks(self, component: ComponentName) -> tuple[ArenaPart, ...]:
        """What each rank has of a component, in rank order."""
        return tuple(part for part in self.parts if part.component is component)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process on one boot of one kernel, with the namespaces that give its number, start and connections a meaning.

    A namespace is named by its inode, 0 where the kernel knows none of that kind.
    """

    boot: str
    pid_namespace: int
    net_namespace: int
    time_namespace: int
    pid: int
    start_ticks: int

    @property
    def place(self) -> tuple[str, int, int, int]:
        """Where the process is looked for: only who shares all of this can say whether it is gone."""
        return self.boot, self.pid_namespace, self.net_namespace, self.time_namespace


class Life(Enum):
    """What one process can say of another. GONE is for ever: nothing of it writes, and nothing it sent is on its way.

    ALIVE may be over a moment later. UNKNOWN is the word of whoever cannot see such a process at all.
    """

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """Registered memory of a process: bytes [offset, offset + bytes) of what it is a part of. `device` is "cpu" or
    "cuda".
    """

    address: int
    bytes: int
    device: str
    device_index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class NixlEndpoint:
    """How a process's memory is reached by NIXL. `agent` is unique for every start of a process.

    The arena lies in one region or, on several devices of a kind, in several, by offset.
    """

    agent: str
    metadata: bytes
    metadata_digest: bytes
    arena: tuple[MemoryRegion, ...]
    scratch: MemoryRegion

    @property
    def device(self) -> str:
        """The kind of all its memory."""
        return self.scratch.device

    @property
    def arena_bytes(self) -> int:
        """Where the arena's last region ends."""
        return max(region.offset + region.bytes for region in self.arena)

    def require_whole(self) -> None:
        """Raises TransferRefused when the metadata is not what its owner sent: the library would drop a known agent."""
        if metadata_digest(self.metadata) != self.metadata_digest:
            raise TransferRefused(f"the NIXL metadata of {self.agent} arrived damaged ({len(self.metadata)} bytes)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """One worker to another. `fingerprint` is what must be equal, by name and as text."""

    worker_id: WorkerId
    protocol_version: int
    fingerprint: tuple[tuple[str, str], ...]
    tp_size: int
    arena: ArenaMap
    process: ProcessIdentity
    nixl: NixlEndpoint | None = None


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Write the pattern of `seed` into my scratch memory."""

    worker_id: WorkerId
    offset: int
    length: int
    seed: bytes


def metadata_digest(metadata: bytes) -> bytes:
    """What a receiver of the blob checks it by."""
    return hashlib.blake2b(metadata, digest_size=16).digest()
