"""Replicas follow what there is to do, and nothing is changed for want of figures."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.scaling import PRESSURE, pressure_policy, replicas_wanted


@dataclass
class Context:
    """What Serve hands to a policy, as far as ours reads it."""

    aggregated_metrics: dict[str, dict[str, float]] | None
    target_num_replicas: int = 3
    config: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(target_ongoing_requests=8.0))


@pytest.mark.parametrize(
    ("pressures", "wanted"), [([0], 1), ([8], 1), ([9], 2), ([4, 4, 4], 2), ([100, 0], 13), ([8.5, 8], 3)]
)
def test_there_are_just_enough_replicas(pressures: list[float], wanted: int) -> None:
    assert replicas_wanted({str(i): pressure for i, pressure in enumerate(pressures)}, 8.0) == wanted


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=8), st.floats(0.5, 64))
def test_no_replica_is_meant_to_have_more_than_the_target(pressures: list[float], target: float) -> None:
    wanted = replicas_wanted(dict(enumerate(pressures)), target)
    assert sum(pressures) / wanted <= target * (1 + 1e-9)
    assert wanted == 1 or sum(pressures) / (wanted - 1) > target * (1 - 1e-9)


def test_the_policy_reads_what_replicas_reported() -> None:
    assert pressure_policy(Context({PRESSURE: {"a": 20.0, "b": 1.0}})) == (3, {})


@pytest.mark.parametrize("metrics", [None, {}, {PRESSURE: {}}])
def test_without_figures_nothing_is_changed(metrics: dict[str, dict[str, float]] | None) -> None:
    assert pressure_policy(Context(metrics, target_num_replicas=5)) == (5, {})
