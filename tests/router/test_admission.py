"""Room is bounded, first come first served, and given back whatever happens to who held it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admission import Admission
from segue.errors import QueueFull, QueueTimeout


async def hold(admission: Admission, count: int, until: asyncio.Event, order: list[int], number: int) -> None:
    async with admission.room(count):
        order.append(number)
        await until.wait()


async def test_what_fits_enters_at_once_and_the_rest_waits_in_order() -> None:
    admission = Admission(4, 10, 5.0)
    events = [asyncio.Event() for _ in range(4)]
    order: list[int] = []
    tasks = [
        asyncio.create_task(hold(admission, count, events[number], order, number))
        for number, count in enumerate((3, 3, 1, 1))
    ]
    await asyncio.sleep(0)
    # The last two would fit beside the first, but the second came before them.
    assert (order, admission.inflight, admission.waiting) == ([0], 3, 3)
    events[0].set()
    await tasks[0]
    await asyncio.sleep(0)
    assert (order, admission.inflight, admission.waiting) == ([0, 1, 2], 4, 1)
    for event in events:
        event.set()
    await asyncio.gather(*tasks)
    assert (order, admission.inflight, admission.waiting) == ([0, 1, 2, 3], 0, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    admission = Admission(1, 0, 5.0)
    async with admission.room(1):
        with pytest.raises(QueueFull):
            async with admission.room(1):
                pass
    async with admission.room(1):
        pass


async def test_who_waits_too_long_is_told_so_and_leaves_the_queue() -> None:
    admission = Admission(1, 5, 0.01)
    async with admission.room(1):
        with pytest.raises(QueueTimeout):
            async with admission.room(1):
                pass
        assert admission.waiting == 0
        assert admission.inflight == 1
    assert admission.inflight == 0


async def test_a_wide_request_that_gives_up_lets_the_narrow_ones_behind_it_in() -> None:
    admission = Admission(3, 5, 5.0)
    done = asyncio.Event()
    order: list[int] = []
    async with admission.room(1):
        wide = asyncio.create_task(hold(admission, 3, done, order, 1))
        await asyncio.sleep(0)
        narrow = asyncio.create_task(hold(admission, 1, done, order, 2))
        await asyncio.sleep(0)
        assert order == []
        wide.cancel()
        await asyncio.gather(wide, return_exceptions=True)
        await asyncio.sleep(0)
        assert order == [2]
        done.set()
        await narrow
    assert admission.inflight == 0


async def test_room_given_in_the_very_turn_of_a_cancel_comes_back() -> None:
    admission = Admission(1, 5, 5.0)
    done = asyncio.Event()
    holder = asyncio.create_task(hold(admission, 1, done, [], 0))
    await asyncio.sleep(0)
    waiter = asyncio.create_task(hold(admission, 1, done, [], 1))
    await asyncio.sleep(0)
    done.set()
    await holder
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert (admission.inflight, admission.waiting) == (0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "cancel", "finish", "turn"]), st.integers(1, 3), st.integers(0, 5)),
        max_size=40,
    )
)
def test_whatever_the_order_nothing_is_overbooked_or_left_over(actions: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        admission = Admission(3, 4, 60.0)
        live: list[tuple[asyncio.Task[None], asyncio.Event]] = []
        for action, count, which in actions:
            if action == "enter":
                event = asyncio.Event()
                live.append((asyncio.create_task(hold(admission, count, event, [], 0)), event))
            elif action == "cancel" and live:
                live[which % len(live)][0].cancel()
            elif action == "finish" and live:
                live[which % len(live)][1].set()
            else:
                await asyncio.sleep(0)
            assert 0 <= admission.inflight <= 3
            assert admission.waiting <= 4
        for _, event in live:
            event.set()
        await asyncio.gather(*(task for task, _ in live), return_exceptions=True)
        assert (admission.inflight, admission.waiting) == (0, 0)

    asyncio.run(play())
