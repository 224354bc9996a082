"""Where a request goes: to the idlest, or in turn, or home."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.config import PlacementPolicy
from router.placement import AFFINITY_SLACK, Candidate, Placement

candidates = st.lists(
    st.builds(Candidate, st.integers(0, 99).map(lambda port: f"h:{port}"), st.integers(0, 50)),
    min_size=1,
    max_size=6,
    unique_by=lambda candidate: candidate.address,
)


@given(candidates)
def test_the_least_loaded_is_chosen(among: list[Candidate]) -> None:
    chosen = Placement(PlacementPolicy.LEAST_LOADED).choose(among, None)
    assert chosen.load == min(candidate.load for candidate in among)


def test_equally_loaded_workers_take_turns() -> None:
    among = [Candidate(f"h:{port}", 1) for port in range(3)]
    for policy in PlacementPolicy:
        placement = Placement(policy)
        assert set(Counter(placement.choose(among, None).address for _ in range(30)).values()) == {10}


def test_round_robin_does_not_look_at_load() -> None:
    among = [Candidate("h:1", 0), Candidate("h:2", 1000)]
    placement = Placement(PlacementPolicy.ROUND_ROBIN)
    assert {placement.choose(among, None).address for _ in range(2)} == {"h:1", "h:2"}


@given(candidates, st.text(max_size=9))
def test_a_session_stays_home_unless_home_is_overloaded(among: list[Candidate], session: str) -> None:
    placement = Placement(PlacementPolicy.LEAST_LOADED)
    idle = [Candidate(candidate.address, 0) for candidate in among]
    home = placement.choose(idle, session)
    assert placement.choose(idle[::-1], session) == home
    chosen = placement.choose(among, session)
    load_min = min(candidate.load for candidate in among)
    load_home = next(candidate.load for candidate in among if candidate.address == home.address)
    if load_home <= load_min + AFFINITY_SLACK:
        assert chosen.address == home.address
    else:
        assert chosen.load == load_min


def test_a_worker_that_leaves_moves_only_its_own_sessions() -> None:
    placement = Placement(PlacementPolicy.LEAST_LOADED)
    among = [Candidate(f"h:{port}", 0) for port in range(4)]
    homes = {session: placement.choose(among, session) for session in map(str, range(200))}
    assert len(set(homes.values())) == 4
    for session, home in homes.items():
        if home is not among[0]:
            assert placement.choose(among[1:], session) == home
