"""The state of one request in host memory: an entry per component, and what was true of it; copies nothing itself."""

from dataclasses import InitVar, dataclass, field

from decode_service.retraction.copies import Mark
from decode_service.retraction.extents import Extent
from segue.handoff import StateDigest
from segue.state.spec import ComponentName


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Pages [first, stop) of one component of a request, one after another in `extents`; a slot is page 0."""

    component: ComponentName
    first: int
    stop: int
    extents: tuple[Extent, ...]

    @property
    def bytes(self) -> int:
        return sum(extent.length for extent in self.extents)


@dataclass(slots=True, kw_only=True, eq=False)
class RetractionBackup:
    """What was saved of a request at `depth`: nothing else is needed to go on from there.

    `recurrent` is whether the model keeps recurrent state; `cpu_copy_carries_mamba` is the storage's: then its pages
    carry that state along. `end` marks the end of the copy that was begun last.
    """

    depth: int
    full: HostCopy | None = None
    window: HostCopy | None = None
    mamba_cpu: HostCopy | None = None
    digests: tuple[StateDigest, ...]
    end: Mark
    recurrent: InitVar[bool]
    cpu_copy_carries_mamba: InitVar[bool]
    bytes: int = field(init=False)

    def __post_init__(self, recurrent: bool, cpu_copy_carries_mamba: bool) -> None:
        carriers = cpu_copy_carries_mamba + (self.mamba_cpu is not None)
        assert carriers == recurrent, f"recurrent state is carried {carriers} times, the model has it: {recurrent}"
        self.bytes = sum(copy.bytes for copy in self.copies)

    @property
    def copies(self) -> tuple[HostCopy, ...]:
        """The entries that there are, in component order."""
        return tuple(copy for copy in (self.full, self.window, self.mamba_cpu) if copy is not None)

    @property
    def in_window(self) -> list[bool]:
        """Of each window page of the request: whether it met the window, and so is in the backup."""
        if self.window is None:
            return []
        return [self.window.first <= index for index in range(self.window.stop)]

    @property
    def hosted(self) -> bool:
        return True

    @property
    def copied(self) -> bool:
        return self.end.query()
