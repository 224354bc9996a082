"""What every test gets: no model hub, its share of the cores, no deadline of Hypothesis, no GPU test without a GPU."""

import gc
import os
from pathlib import Path

import hypothesis
import pytest

from segue.threads import let_waiting_threads_sleep

# A test that reaches for a hub fails at once instead of waiting for a network that CI does not have.
os.environ["HF_HUB_OFFLINE"] = "1"

# Without a device Triton's kernels run in its interpreter, if this is said before anything imports Triton.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Test processes side by side share the cores: the tensor products of one must not fight for those of the other.
SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if SIDE_BY_SIDE > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // SIDE_BY_SIDE)))

# Nearly all that is made until the tests begin stays: to look for garbage meanwhile finds none.
gc.disable()

# As in a worker.
let_waiting_threads_sleep()

# Several processes share the cores that tests run on: an example's wall time says nothing about the code.
hypothesis.settings.register_profile("segue", deadline=None, print_blob=True)
# A mutant need only be killed, not explained.
hypothesis.settings.register_profile(
    "mutants", hypothesis.settings.get_profile("segue"), phases=[hypothesis.Phase.generate], database=None
)
hypothesis.settings.load_profile("segue")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests marked `gpu` where torch sees no CUDA device."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch  # here, because most test runs need no torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=wanting)
        items[:] = [item for item in items if item not in wanting]


def pytest_collection_finish() -> None:
    """What is imported by now stays: no collection of garbage need look at it again, in whatever test it comes."""
    gc.collect()
    gc.freeze()
    gc.enable()
