"""A process is proven gone by the kernel, never by its number."""

import subprocess
import sys
from dataclasses import replace

from kv_transfer.process import ProcessWatch, own_process
from segue.peering import ProcessIdentity


def identity(process: "subprocess.Popen[bytes]") -> ProcessIdentity:
    """What the process would say of itself."""
    assert process.stdout is not None
    boot, namespace, pid, ticks = process.stdout.readline().decode().split()
    return ProcessIdentity(boot, int(namespace), int(pid), int(ticks))


def start() -> "subprocess.Popen[bytes]":
    code = (
        "import sys; from kv_transfer.process import own_process as o; p = o();"
        "print(p.boot, p.pid_namespace, p.pid, p.start_ticks, flush=True); sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_process_is_there_until_it_is_killed() -> None:
    with start() as process:
        watch = ProcessWatch.open(identity(process))
        assert watch is not None
        assert not watch.gone()
        process.kill()
        process.wait(20)
        assert watch.gone()
        assert watch.gone()


def test_a_process_that_has_ended_before_is_gone() -> None:
    with start() as process:
        who = identity(process)
        process.kill()
        process.wait(20)
    watch = ProcessWatch.open(who)
    assert watch is not None
    assert watch.gone()


def test_another_process_under_the_same_number_does_not_count() -> None:
    ours = own_process()
    watch = ProcessWatch.open(replace(ours, start_ticks=ours.start_ticks - 1))
    assert watch is not None
    assert watch.gone()


def test_a_process_of_another_machine_or_numbering_cannot_be_judged() -> None:
    ours = own_process()
    assert ProcessWatch.open(replace(ours, boot="another")) is None
    assert ProcessWatch.open(replace(ours, pid_namespace=1)) is None
