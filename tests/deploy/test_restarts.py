"""A process that dies now and then comes back at once; one that cannot live is given up."""

from hypothesis import given
from hypothesis import strategies as st

from deploy.restarts import RestartPolicy, Restarts

POLICY = RestartPolicy(quick_death_s=10.0, quick_deaths_max=5, backoff_s=0.25, backoff_s_max=1.5)


def test_waits_double_up_to_a_limit_and_then_it_is_given_up() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.died(1.0) for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, None]


def test_a_long_life_forgives_all_quick_deaths() -> None:
    restarts = Restarts(POLICY)
    waits = [restarts.died(lived_s) for lived_s in (1, 1, 1, 1, 60, 1)]
    assert waits == [0.25, 0.5, 1.0, 1.5, 0.25, 0.25]


@given(st.lists(st.floats(0, 100), max_size=30))
def test_it_is_given_up_exactly_after_so_many_quick_deaths_in_a_row(lives: list[float]) -> None:
    restarts, quick = Restarts(POLICY), 0
    for lived_s in lives:
        quick = quick + 1 if lived_s < POLICY.quick_death_s else 0
        wait_s = restarts.died(lived_s)
        assert (wait_s is None) == (quick >= POLICY.quick_deaths_max)
        assert wait_s is None or 0 < wait_s <= POLICY.backoff_s_max
