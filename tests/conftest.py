"""What every test gets: no model hub, Hypothesis without deadlines, and GPU tests left out where no GPU is."""

import os

import hypothesis
import pytest

from segue.threads import let_waiting_threads_sleep

# A test that reaches for a hub fails at once instead of waiting for a network that CI does not have.
os.environ["HF_HUB_OFFLINE"] = "1"

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
