"""Real processes that say who they are, and may be killed with bytes of theirs still on the way."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from kv_transfer.process import ProcessWatch
from segue.peering import ProcessIdentity

T = TypeVar("T")

INTRODUCE = (
    "import sys; from kv_transfer.process import own_process as o; p = o();"
    "print(*p.place, p.pid, p.start_ticks, flush=True);"
)
# Writes until the connection takes no more.
FILL = (
    "import socket; c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); c.setblocking(False)\n"
    "try:\n  while True: c.send(bytes(65536))\n"
    "except BlockingIOError: print(flush=True)\n"
)
WAIT = "sys.stdin.read()"

ELSEWHERE: dict[str, Callable[[ProcessIdentity], ProcessIdentity]] = {
    "another boot": lambda process: replace(process, boot="another"),
    "no boot": lambda process: replace(process, boot=""),
    "another numbering": lambda process: replace(process, pid_namespace=1),
    "another network": lambda process: replace(process, net_namespace=1),
    "another clock": lambda process: replace(process, time_namespace=1),
}
"""A process of this machine as if it ran where it cannot be seen from here."""


def identity(process: "subprocess.Popen[bytes]") -> ProcessIdentity:
    """What the process would say of itself."""
    assert process.stdout is not None
    boot, *numbers = process.stdout.readline().decode().split()
    return ProcessIdentity(boot, *map(int, numbers))


def start(code: str = INTRODUCE + WAIT, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(20)


@contextmanager
def left_unread() -> Iterator[tuple[ProcessIdentity, socket.socket]]:
    """A process that was killed with much more on its connection than the other end has read; and that end."""
    with socket.create_server(("127.0.0.1", 0)) as server, start(INTRODUCE + FILL + WAIT, str(port_of(server))) as one:
        who = identity(one)
        reading, _ = server.accept()
        assert one.stdout is not None
        assert one.stdout.readline() == b"\n"
        with reading:
            end(one)
            yield who, reading


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def becomes(question: Callable[[], T], answer: T, timeout_s: float = 20.0) -> bool:
    """Whether it is answered so in the end: whatever else ends on this machine may leave something to send too."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if question() == answer:
            return True
    return False


def read_all(reading: socket.socket) -> None:
    while reading.recv(1 << 20):
        pass


def see_nothing(process: ProcessIdentity) -> ProcessWatch | None:
    """The watch of a worker that is elsewhere."""
    return None
