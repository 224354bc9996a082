"""What state a model keeps, as the model declares it; plain values that know nothing of tensors or memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from segue.errors import CheckpointError


class ComponentName(StrEnum):
    """The three kinds of state; the order is the order in which everything walks them."""

    FULL = "full"
    WINDOW = "window"
    RECURRENT = "recurrent"


class DType(StrEnum):
    """Element types that state and weights may have; an 8-bit one is for stored vectors, which have scales beside."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8_E4M3 = "float8_e4m3"

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self]


_ITEM_BYTES = {DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2, DType.FLOAT8_E4M3: 1}
COMPUTE_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
"""What a model can compute in."""
KV_DTYPES = {"fp8": DType.FLOAT8_E4M3}
"""What keys and values can be stored in beside the compute dtype, as settings call it."""
MATRIX = "matrix"
"""What every family calls the matrix state [head, key, value] of a recurrent layer."""
REPLAY_LENGTHS = (1, 8, 16, 32)
"""Decode steps from one write of a matrix state to the next; 1 writes it in every step and needs no ring."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of one layer's state.

    `groups` counts head groups (KV heads; for recurrent layers key heads with the value heads they serve): the unit
    that tensor parallelism cuts. `shape` is the shape per group, and for paged components per token too. `window` is
    W, the past keys a token sees beside itself; None for full attention and recurrent state.
    """

    layer: int
    name: str
    component: ComponentName
    groups: int
    shape: tuple[int, ...]
    dtype: DType
    window: int | None = None

    def __post_init__(self) -> None:
        assert (self.window is not None) == (self.component is ComponentName.WINDOW), self
        assert self.groups > 0, self
        assert all(size > 0 for size in self.shape), self

    @property
    def group_bytes(self) -> int:
        """Bytes of one group (per token for paged components)."""
        count = self.dtype.item_bytes
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """All tensors of one component, over all layers."""

    name: ComponentName
    tensors: tuple[StateTensor, ...]
    window: int | None

    @property
    def paged(self) -> bool:
        """Whether the component lives in pages (per token) rather than in one slot per sequence."""
        return self.name is not ComponentName.RECURRENT


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """What one decoded token adds to the ring of a recurrent layer whose matrix state can be left behind (ReplaySSM).

    No state by itself, and never moved. `rule` names the recurrence by which it goes into the matrix.
    """

    layer: int
    rule: str
    tensors: tuple[StateTensor, ...]

    def __post_init__(self) -> None:
        assert all(tensor.layer == self.layer for tensor in self.tensors), self


@dataclass(frozen=True, slots=True)
class ModelState:
    """The declared state of a whole model; every consumer iterates over `components`.

    `records` has one for each recurrent layer that can be replayed.
    """

    components: tuple[ComponentSpec, ...]
    records: tuple[LayerRecord, ...] = ()

    @staticmethod
    def of(tensors: Iterable[StateTensor], records: Iterable[LayerRecord] = ()) -> "ModelState":
        """Groups per-layer declarations into components.

        Raises CheckpointError when a model mixes window sizes or group counts within a component.
        """
        by_name: dict[ComponentName, list[StateTensor]] = {name: [] for name in ComponentName}
        for tensor in tensors:
            by_name[tensor.component].append(tensor)
        specs = []
        for name, members in by_name.items():
            if not members:
                continue
            windows = {tensor.window for tensor in members}
            if len(windows) > 1:
                raise CheckpointError(
                    f"{name} layers have different windows {sorted(map(str, windows))}; one is supported"
                )
            groups = {tensor.groups for tensor in members}
            if len(groups) > 1:
                raise CheckpointError(
                    f"{name} layers have different head group counts {sorted(groups)}; one is supported"
                )
            specs.append(ComponentSpec(name, tuple(members), windows.pop()))
        return ModelState(tuple(specs), tuple(records))

    def component(self, name: ComponentName) -> ComponentSpec | None:
        """The component of that name, or None when the model keeps no such state."""
        return next((spec for spec in self.components if spec.name is name), None)

    @property
    def window(self) -> int | None:
        """W of the model's sliding layers, None when it has none."""
        spec = self.component(ComponentName.WINDOW)
        return spec.window if spec else None


def uses_ssm_state(state: ModelState) -> bool:
    """Whether the model declares any recurrent component: the one answer that nobody re-derives."""
    return state.component(ComponentName.RECURRENT) is not None
