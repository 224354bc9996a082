"""A pool of numbered units with one owner each: pure bookkeeping, all or nothing; tensors live in storage."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from segue.errors import PoolExhausted
from segue.ids import SINK


class Owner(IntEnum):
    """Who a unit belongs to. A quarantined unit may still be written by a peer that was told to stop; a cached one is
    the prefix tree's, whoever else reads it.
    """

    FREE = 0
    HELD = 1
    RESERVED = 2
    QUARANTINED = 3
    CACHED = 4


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """The disjoint sets of one pool; they always add up to `capacity`."""

    name: str
    capacity: int
    free: int
    held: int
    cached: int = 0
    reserved: int = 0
    quarantined: int = 0
    sink: int = 1

    def __post_init__(self) -> None:
        total = self.free + self.held + self.cached + self.reserved + self.quarantined + self.sink
        assert total == self.capacity, f"pool {self.name} does not add up: {self}"


class Pool:
    """Units 1 .. capacity - 1 (unit 0 is the sink). Lowest free unit first would cost a heap.

    Last freed first is enough.
    """

    def __init__(self, name: str, capacity: int) -> None:
        assert capacity >= 1, f"pool {name} has no room for its sink"
        self.name = name
        self.capacity = capacity
        self.relieve: Callable[[int], None] | None = None
        """Asked to free so many more units before an allocation fails."""
        self._free = list(range(capacity - 1, SINK, -1))
        self._owners = bytearray(capacity)

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def usable_count(self) -> int:
        """Units that can ever be allocated at once."""
        return self.capacity - 1

    def alloc(self, count: int, owner: Owner = Owner.HELD) -> list[int]:
        """Takes `count` units for `owner`, or raises PoolExhausted and takes none."""
        assert count >= 0
        assert owner is not Owner.FREE
        if count > len(self._free) and self.relieve is not None:
            self.relieve(count - len(self._free))
        if count > len(self._free):
            raise PoolExhausted(self.name, count, len(self._free))
        if count == 0:
            return []
        units = self._free[-count:]
        del self._free[-count:]
        for unit in units:
            assert self._owners[unit] == Owner.FREE, f"pool {self.name} handed out owned unit {unit}"
            self._owners[unit] = owner
        return units

    def free(self, units: Iterable[int], owner: Owner = Owner.HELD) -> None:
        """Gives units back; each must belong to `owner`."""
        for unit in units:
            self._require(unit, owner, "freed")
            self._owners[unit] = Owner.FREE
            self._free.append(unit)

    def move(self, units: Iterable[int], source: Owner, target: Owner) -> None:
        """Hands units from one owner to another; neither is the free list."""
        assert Owner.FREE not in (source, target)
        for unit in units:
            self._require(unit, source, "moved")
            self._owners[unit] = target

    def holds(self, unit: int) -> bool:
        """Whether the unit is allocated to a request."""
        return self._owners[unit] == Owner.HELD

    def owner(self, unit: int) -> Owner:
        """Who the unit belongs to now."""
        return Owner(self._owners[unit])

    def counts(self) -> PoolCounts:
        held, cached, reserved, quarantined = (
            self._owners.count(owner) for owner in (Owner.HELD, Owner.CACHED, Owner.RESERVED, Owner.QUARANTINED)
        )
        return PoolCounts(self.name, self.capacity, len(self._free), held, cached, reserved, quarantined)

    def check(self) -> None:
        """Asserts that free and owned are disjoint and complete."""
        free = set(self._free)
        assert len(free) == len(self._free), f"pool {self.name} lists a unit twice"
        assert SINK not in free, f"pool {self.name} would hand out its sink"
        assert self._owners[SINK] == Owner.FREE, f"pool {self.name} gave its sink an owner"
        # Pools are large, and tests ask after every step.
        assert not any(map(self._owners.__getitem__, self._free)), f"pool {self.name}: a unit is owned and free"
        assert self._owners.count(Owner.FREE) == len(free) + 1, f"pool {self.name}: a unit is neither owned nor free"

    def _require(self, unit: int, owner: Owner, what: str) -> None:
        assert 0 < unit < self.capacity, f"pool {self.name} has no unit {unit}"
        assert self._owners[unit] == owner, f"pool {self.name}: unit {unit} is {what} but not {owner.name.lower()}"
