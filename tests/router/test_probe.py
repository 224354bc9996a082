"""A process that is gone is told from one that is silent by what its address answers, and nothing is told by a name."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from router.fleet import Fleet
from router.link import LinkState
from router.probe import nobody_listens
from tests.router.reading import reading
from tests.router.served import QUICK, answer, served
from tests.router.test_workers_lost import begun, complete, placed, until_state
from tests.support.fake_worker import FakeWorker

# Longer than any test here waits for anything.
PATIENT = replace(QUICK, reattach_grace_s=120.0)


@contextmanager
def listening() -> Iterator[int]:
    """A port at which connections are let in by the system, and nobody ever says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def lasted(fleet: Fleet, wait_s: float) -> None:
    """Waits for that long, whatever comes and goes."""
    end = asyncio.get_running_loop().time() + wait_s
    while (left_s := end - asyncio.get_running_loop().time()) > 0:
        await fleet.wait_change(left_s)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_that_was_closed_is_listened_at_by_nobody(host: str) -> None:
    with listening() as port:
        pass
    assert await nobody_listens(f"{host}:{port}", 5.0)


async def test_a_name_is_listened_at_if_any_of_its_addresses_is() -> None:
    with listening() as port:
        assert not await nobody_listens(f"127.0.0.1:{port}", 5.0)
        # No name stands for this machine by every protocol that it has, of which only one is listened at.
        assert not await nobody_listens(f":{port}", 5.0)


@pytest.mark.parametrize(
    "address", ["nowhere.invalid:80", "no..name:80", "unix:worker.sock", "127.0.0.1:x", "127.0.0.1"]
)
async def test_what_cannot_be_asked_tells_nothing(address: str) -> None:
    assert not await nobody_listens(address, 5.0)


async def test_silence_tells_nothing() -> None:
    with listening() as port:
        assert not await nobody_listens(f"127.0.0.1:{port}", 0.0)


async def test_when_a_worker_is_gone_its_choices_go_on_elsewhere_without_a_grace() -> None:
    async with (
        FakeWorker(answer, worker_id="a", paused=True) as a,
        FakeWorker(answer, worker_id="b", paused=True) as b,
        served(a, b, config=PATIENT) as router,
        reading(router.http) as stream,
    ):
        home, other = await placed(a, b)
        await begun(home, stream, 3)
        await home.stop()
        await other.until(lambda: len(other.live) == 1)
        other.step(64)
        await complete(stream)


@pytest.mark.long
async def test_a_worker_that_lives_and_says_nothing_has_its_grace() -> None:
    async with (
        FakeWorker(answer, worker_id="a", paused=True) as a,
        FakeWorker(answer, worker_id="b", paused=True) as b,
        served(a, b, config=PATIENT) as router,
        reading(router.http) as stream,
    ):
        home, other = await placed(a, b)
        choice = await begun(home, stream, 3)
        fleet = router.shell.fleet
        (link,) = [link for link in fleet.links if link.address == home.address]
        home.deaf = True
        home.break_stream()
        while link.state is not LinkState.BROKEN:
            await fleet.wait_change(1.0)
        # It has time to be asked again and again.
        await lasted(fleet, 4 * QUICK.reconnect_wait_s_max)
        assert link.state is LinkState.BROKEN
        home.deaf = False
        await home.until(lambda: len(home.attaches) == 2)
        assert [resumed.handle for resumed in home.attaches[1].resume] == [choice.handle]
        home.step(64)
        await complete(stream)
        assert not other.specs


async def test_the_grace_of_a_worker_that_was_followed_by_another_ends_with_it() -> None:
    """At its end it would take from the new one what that has meanwhile."""
    config = replace(QUICK, reattach_grace_s=1.0)
    async with FakeWorker(answer, worker_id="old", paused=True) as old:
        new = FakeWorker(answer, worker_id="new", paused=True)
        async with served(old, config=config) as router, reading(router.http) as stream:
            await begun(old, stream, 2)
            old.deaf = True
            old.break_stream()
            await until_state(router, LinkState.BROKEN)
            await old.stop()
            await new.start(old.port)
            try:
                await new.until(lambda: len(new.live) == 1)
                await lasted(router.shell.fleet, 1.5 * config.reattach_grace_s)
                assert len(new.specs) == 1
                new.step(64)
                await complete(stream)
            finally:
                await new.stop()
