"""A process is proven gone by the kernel, never by its number."""

import threading
from dataclasses import replace

import pytest

from kv_transfer.process import ProcessWatch, own_process
from kv_transfer.witness import Witness
from segue.peering import Life
from tests.support.live_process import ELSEWHERE, becomes, end, identity, left_unread, read_all, start


def test_a_process_is_there_until_it_is_killed() -> None:
    with start() as process:
        watch = ProcessWatch.open(identity(process))
        assert watch is not None
        assert not watch.gone()
        end(process)
        assert becomes(watch.gone, True)
        assert becomes(watch.gone, True)


def test_a_process_that_has_ended_before_is_gone() -> None:
    with start() as process:
        who = identity(process)
        end(process)
    watch = ProcessWatch.open(who)
    assert watch is not None
    assert becomes(watch.gone, True)


def test_a_process_is_not_gone_while_the_kernel_still_sends_what_it_wrote() -> None:
    with left_unread() as (who, reading):
        watch = ProcessWatch.open(who)
        assert watch is not None
        assert watch.ended()
        assert not watch.gone()
        read_all(reading)
        assert becomes(watch.gone, True)


def test_what_others_leave_to_send_later_does_not_keep_a_process() -> None:
    with left_unread() as (who, reading):
        watch = ProcessWatch.open(who)
        assert watch is not None
        assert not watch.gone()
        with left_unread():
            read_all(reading)
            assert becomes(watch.gone, True)


def test_another_process_under_the_same_number_does_not_count() -> None:
    ours = own_process()
    watch = ProcessWatch.open(replace(ours, start_ticks=ours.start_ticks - 1))
    assert watch is not None
    assert becomes(watch.gone, True)


def test_a_thread_under_the_same_number_does_not_count() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert thread.native_id is not None
    watch = ProcessWatch.open(replace(own_process(), pid=thread.native_id))
    stop.set()
    thread.join()
    assert watch is not None
    assert becomes(watch.gone, True)


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_process_of_another_machine_or_namespace_cannot_be_judged(place: str) -> None:
    elsewhere = ELSEWHERE[place](own_process())
    assert ProcessWatch.open(elsewhere) is None
    assert Witness().life(elsewhere) is Life.UNKNOWN


@pytest.mark.parametrize("damage", [{"pid": 0}, {"start_ticks": 0}], ids=str)
def test_an_identity_that_makes_no_sense_is_nobodys(damage: dict[str, int]) -> None:
    ours = own_process()
    pid, start_ticks = damage.get("pid", ours.pid), damage.get("start_ticks", ours.start_ticks)
    assert ProcessWatch.open(replace(ours, pid=pid, start_ticks=start_ticks)) is None


def test_a_witness_tells_the_living_from_the_dead() -> None:
    witness = Witness()
    with start() as process:
        who = identity(process)
        assert witness.life(who) is Life.ALIVE
        end(process)
        assert becomes(lambda: witness.life(who), Life.GONE)
    assert becomes(lambda: witness.life(who), Life.GONE)


def test_a_witness_does_not_take_a_number_that_was_given_away_for_the_process() -> None:
    ours = own_process()
    assert Witness().life(ours) is Life.ALIVE
    witness, before = Witness(), replace(ours, start_ticks=ours.start_ticks - 1)
    assert becomes(lambda: witness.life(before), Life.GONE)


def test_a_witness_waits_for_what_the_dead_have_sent() -> None:
    witness = Witness()
    with left_unread() as (who, reading):
        assert witness.life(who) is Life.ALIVE
        assert witness.life(who) is Life.ALIVE
        read_all(reading)
        assert becomes(lambda: witness.life(who), Life.GONE)
