"""Workers that die, freeze, restart or do not fit in the middle of a handoff: no page is lost, none is reused early."""

import signal
from dataclasses import replace

import pytest

from tests.support.handoff_process import HandoffProcess, handoff_pair
from tests.support.handoff_worker import Script, Setting

pytestmark = pytest.mark.cluster

CMA = Setting(transport="nixl", lease_s=2.0)
TCP = replace(CMA, ucx_tls="tcp")
GRPC = replace(CMA, transport="grpc")
ALL = pytest.mark.parametrize("setting", [CMA, TCP, GRPC], ids=["nixl-cma", "nixl-tcp", "grpc"])
CLEAN = {"held": 0, "reserved": 0, "quarantined": 0, "in_flight": 0}
PAUSED = Script(request="paused", prompt_tokens=33, checkpoint=8, pause_after=2)
NEXT = Script(request="next", prompt_tokens=33, checkpoint=8)


def begin(sender: HandoffProcess, receiver: HandoffProcess) -> None:
    """A handoff of which two chunks are written, and the third waits."""
    receiver.start_receiving(sender, PAUSED)
    sender.until(pushed=2, in_flight=0)


@ALL
def test_a_sender_that_is_killed_frees_the_receiver_at_once(setting: Setting) -> None:
    with handoff_pair(setting, setting) as (sender, receiver):
        begin(sender, receiver)
        sender.kill()
        assert receiver.answer()["error"] == "WorkerUnavailable"
        receiver.until(**CLEAN)
        port = int(sender.address.rpartition(":")[2])
        restarted = HandoffProcess(replace(setting, port=port))
        try:
            assert receiver.receive(restarted, NEXT).get("whole") is True
        finally:
            restarted.close()


@ALL
def test_a_receiver_that_is_killed_frees_the_sender(setting: Setting) -> None:
    with handoff_pair(setting, setting) as (sender, receiver):
        begin(sender, receiver)
        receiver.kill()
        sender.ask(go=True)
        sender.until(**CLEAN)
        another = HandoffProcess(setting)
        try:
            assert another.receive(sender, NEXT).get("whole") is True
        finally:
            another.close()


@ALL
def test_a_frozen_sender_keeps_its_pages_in_quarantine_until_it_goes_on(setting: Setting) -> None:
    with handoff_pair(setting, setting) as (sender, receiver):
        begin(sender, receiver)
        sender.signal(signal.SIGSTOP)
        assert receiver.answer()["error"] == "WorkerUnavailable"
        # 33 tokens of full and window pages, two slots: nothing of them is free while the sender might write.
        frozen = receiver.until(reserved=0)
        assert frozen["quarantined"] > 10
        assert receiver.state()["quarantined"] == frozen["quarantined"]
        sender.signal(signal.SIGCONT)
        receiver.until(**CLEAN)
        sender.until(**CLEAN)
        assert receiver.receive(sender, NEXT).get("whole") is True


@ALL
def test_a_frozen_sender_that_is_killed_ends_the_quarantine(setting: Setting) -> None:
    with handoff_pair(setting, setting) as (sender, receiver):
        begin(sender, receiver)
        sender.signal(signal.SIGSTOP)
        receiver.answer()
        receiver.until(reserved=0)
        sender.kill()
        receiver.until(**CLEAN)


def freeze(sender: HandoffProcess, receiver: HandoffProcess) -> int:
    """A sender stops in the middle of a handoff; how much its receiver has in quarantine then."""
    begin(sender, receiver)
    sender.signal(signal.SIGSTOP)
    receiver.answer()
    return int(receiver.until(reserved=0)["quarantined"])


def again(setting: Setting, gone: HandoffProcess) -> HandoffProcess:
    """A worker under the address of one that was killed."""
    return HandoffProcess(replace(setting, port=int(gone.address.rpartition(":")[2])))


@pytest.mark.parametrize("setting", [CMA, TCP], ids=["nixl-cma", "nixl-tcp"])
def test_a_sender_elsewhere_is_known_to_be_dead_by_the_word_of_its_successor(setting: Setting) -> None:
    elsewhere = replace(setting, watch=False)
    with handoff_pair(setting, elsewhere) as (sender, receiver):
        held = freeze(sender, receiver)
        sender.kill()
        # Nobody is there who could know.
        assert receiver.state()["quarantined"] == held > 10
        successor = again(setting, sender)
        try:
            assert successor.address == sender.address
            receiver.until(**CLEAN)
            assert receiver.receive(successor, NEXT).get("whole") is True
        finally:
            successor.close()


def test_a_successor_with_other_weights_knows_too() -> None:
    with handoff_pair(CMA, replace(CMA, watch=False)) as (sender, receiver):
        assert freeze(sender, receiver) > 10
        sender.kill()
        successor = again(replace(CMA, weights="w1"), sender)
        try:
            assert successor.address == sender.address
            receiver.until(**CLEAN)
        finally:
            successor.close()


def test_any_worker_beside_it_knows_of_each_that_is_dead_and_frees_nothing_of_the_living() -> None:
    with handoff_pair(CMA, replace(CMA, watch=False)) as (first, receiver):
        second, beside = HandoffProcess(CMA), HandoffProcess(CMA)
        try:
            assert receiver.receive(beside, NEXT).get("whole") is True
            of_one = freeze(first, receiver)
            of_both = freeze(second, receiver)
            assert of_both > of_one
            second.kill()
            receiver.until(quarantined=of_one)
            # The other one is frozen, and said to be alive: it goes on, and settles by itself.
            first.signal(signal.SIGCONT)
            receiver.until(**CLEAN)
            first.until(**CLEAN)
        finally:
            second.close()
            beside.close()


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_a_frozen_receiver_over_tcp_ends_the_lease_but_the_senders_pages_wait_for_the_write(
    end: signal.Signals,
) -> None:
    with handoff_pair(TCP, TCP) as (sender, receiver):
        begin(sender, receiver)
        receiver.signal(signal.SIGSTOP)
        sender.ask(go=True)
        state = sender.until(errors=["LeaseExpired"])
        assert state["in_flight"] > 0
        assert state["held"] > 0
        receiver.signal(end)
        sender.until(**CLEAN)


def test_a_frozen_receiver_whose_memory_is_written_directly_costs_its_own_request_only() -> None:
    with handoff_pair(CMA, CMA) as (sender, receiver):
        begin(sender, receiver)
        receiver.signal(signal.SIGSTOP)
        sender.ask(go=True)
        another = HandoffProcess(CMA)
        try:
            assert another.receive(sender, NEXT).get("whole") is True
        finally:
            another.close()
        receiver.signal(signal.SIGCONT)
        receiver.answer()
        receiver.until(**CLEAN)
        sender.until(**CLEAN)


def test_workers_that_serve_different_weights_refuse_each_other_by_name() -> None:
    with handoff_pair(GRPC, replace(GRPC, weights="w1")) as (sender, receiver):
        answer = receiver.receive(sender, NEXT)
        assert answer["error"] == "FingerprintMismatch"
        assert "weights: ours w0, theirs w1" in answer["message"]


def test_workers_without_nixl_on_one_side_use_messages() -> None:
    with handoff_pair(GRPC, CMA) as (sender, receiver):
        answer = receiver.receive(sender, NEXT)
        assert (answer["transport"], answer["whole"]) == ("grpc", True)
