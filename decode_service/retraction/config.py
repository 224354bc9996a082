"""Settings of retraction: what backs up a request's state, how much host memory it may have, and the rules' numbers."""

from dataclasses import dataclass
from enum import StrEnum

from segue.config import require_at_least_one, require_not_negative
from segue.errors import ConfigError
from segue.state.spec import ComponentName


class BackendName(StrEnum):
    """What keeps backups."""

    HOST_POOL = "host_pool"
    """Pages of the host beside the pages of the device. Recurrent state has no pages."""
    CPU_TENSOR = "cpu_tensor"
    """Tensors of each request, of all components, cut from one arena."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractionConfig:
    """How a decode worker takes requests off the device and brings them back.

    `backend` is a BackendName; empty, it follows from the model. `host_bytes` is allocated at start (0: no backups, a
    request that is taken off is recomputed). `verify` compares digests of what was saved and what came back.

    A request comes back when there is room for `headroom_steps` decode steps of it and of all that run. Admission
    expects `ratio_start` of the output that requests may have. A retraction sets that share to what those that stay
    have used and will use in `headroom_steps` more; otherwise it falls, from `ratio_start` to `ratio_floor` in
    `ratio_steps` steps.

    For tests: every `test_interval`-th decode step takes a request off (0: none), and the component `test_drop` comes
    back zero-filled (empty: none).
    """

    backend: str = ""
    host_bytes: int = 1 << 30
    verify: bool = False
    headroom_steps: int = 20
    ratio_start: float = 0.7
    ratio_floor: float = 0.1
    ratio_steps: int = 600
    test_interval: int = 0
    test_drop: str = ""

    def __post_init__(self) -> None:
        _require_one_of("backend", self.backend, set(BackendName))
        _require_one_of("test_drop", self.test_drop, set(ComponentName))
        require_not_negative("retraction.", self, "host_bytes", "headroom_steps", "ratio_floor", "test_interval")
        require_at_least_one("retraction.", self, "ratio_steps")
        # Asked for what must hold: NaN holds nothing.
        if not self.ratio_floor <= self.ratio_start <= 1:
            raise ConfigError(
                f"retraction.ratio_start is {self.ratio_start}, it must lie between ratio_floor {self.ratio_floor} "
                "and 1",
                param="ratio_start",
            )
        if self.test_drop and self.verify:
            raise ConfigError(
                f"retraction.test_drop '{self.test_drop}' spoils what retraction.verify is to find unspoilt; set one "
                "of them",
                param="test_drop",
            )

    @property
    def dropped(self) -> ComponentName | None:
        """The component that comes back zero-filled."""
        return ComponentName(self.test_drop) if self.test_drop else None


def _require_one_of(name: str, value: str, known: set[str]) -> None:
    if value and value not in known:
        raise ConfigError(
            f"retraction.{name} is '{value}', it must be empty or one of {', '.join(sorted(known))}", param=name
        )
