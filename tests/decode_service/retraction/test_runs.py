"""Every byte is copied once; what neighbours on both sides is one copy."""

from hypothesis import given
from hypothesis import strategies as st

from decode_service.retraction.extents import Extent
from decode_service.retraction.runs import Scattered, Straight, plan_copies

UNIT = 4


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[Extent]]:
    """Units in any order, and ranges that they fill, cut anywhere."""
    units = draw(st.permutations(range(12)))[: draw(st.integers(1, 12))]
    if draw(st.booleans()):
        units = sorted(units)
    left, at, extents = len(units) * UNIT, 0, []
    while left:
        length = draw(st.integers(1, left))
        at += draw(st.integers(1, 3))
        extents.append(Extent(at, length))
        left, at = left - length, at + length
    return units, draw(st.permutations(extents))


@given(layouts(), st.integers(1, 20))
def test_every_byte_is_copied_once_to_its_place(layout: tuple[list[int], list[Extent]], straight: int) -> None:
    units, extents = layout
    wanted = list(
        zip(
            [unit * UNIT + byte for unit in units for byte in range(UNIT)],
            [byte for extent in extents for byte in range(extent.start, extent.stop)],
            strict=True,
        )
    )
    copied: list[tuple[int, int]] = []
    for copy in plan_copies(units, UNIT, extents, straight):
        if isinstance(copy, Straight):
            copied += [(copy.device + byte, copy.host + byte) for byte in range(copy.length)]
        else:
            for number, unit in enumerate(units[copy.first : copy.stop]):
                copied += [(unit * UNIT + byte, copy.host + number * UNIT + byte) for byte in range(UNIT)]
    assert copied == wanted


def test_neighbours_on_both_sides_are_one_copy() -> None:
    assert plan_copies([3, 4, 5, 6], UNIT, [Extent(100, 16)], 1000) == [Straight(12, 100, 16)]


def test_long_runs_are_copied_alone_and_the_short_ones_between_them_together() -> None:
    units = [1, 2, 3, 8, 6, 10, 11, 12, 5]
    assert plan_copies(units, UNIT, [Extent(0, 36)], 12) == [
        Straight(4, 0, 12),
        Scattered(3, 5, 12),
        Straight(40, 20, 12),
        Scattered(8, 9, 32),
    ]


def test_a_unit_in_two_ranges_is_copied_in_two_pieces() -> None:
    assert plan_copies([7, 2], UNIT, [Extent(0, 6), Extent(50, 2)], 1000) == [
        Straight(28, 0, 4),
        Straight(8, 4, 2),
        Straight(10, 50, 2),
    ]
