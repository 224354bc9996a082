"""Processes of a test that begin as copies of one that has read the libraries already: a second less for each.

What is forked shares nothing with its origin but what was read from disk: threads, sockets and devices come after.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_MESSAGE_BYTES_MAX = 1 << 16


class Forked:
    """A started copy: its number, a handle that no reused number can fool, and the ends of its pipes."""

    def __init__(self, pid: int, pidfd: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin, self.stdout = stdin, stdout
        self._pidfd: int | None = pidfd

    def signal(self, number: signal.Signals) -> None:
        """Signals it, if it has not ended."""
        if self._pidfd is not None and not self.ended(0.0):
            signal.pidfd_send_signal(self._pidfd, number)

    def ended(self, limit_s: float) -> bool:
        """Whether it has ended, or does within that time."""
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))

    def close(self) -> None:
        """Gives back what it took here; its process must have ended."""
        assert self.ended(0.0), f"process {self.pid} runs still"
        if self._pidfd is not None:
            for descriptor in (self._pidfd, self.stdin, self.stdout):
                os.close(descriptor)
            self._pidfd = None


class Origin:
    """The process that copies are taken of. It ends when whoever started it has ended."""

    def __init__(self, module: str) -> None:
        """`module` runs `serve_forks` when it is started with the number of a socket."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
                # It would start threads as soon as it is read.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def close(self) -> None:
        """Ends it; its copies go on."""
        self._socket.close()
        self._process.wait(20)

    def fork(self, argument: str) -> Forked:
        """Another copy, which runs with this argument."""
        (stdin_read, stdin), (stdout, stdout_write) = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._socket, [argument.encode()], [stdin_read, stdout_write])
        finally:
            os.close(stdin_read)
            os.close(stdout_write)
        answer, (pidfd,), _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES_MAX, 1)
        return Forked(json.loads(answer), pidfd, stdin, stdout)


@cache
def origin(module: str) -> Origin:
    """The one of a module in this test process."""
    made = Origin(module)
    atexit.register(made.close)
    return made


def serve_forks(descriptor: int, run: Callable[[str], None]) -> None:
    """Forks whenever a message comes on the socket, until its other end is closed; `run` is all that a copy does."""
    # Nobody asks how they ended, so none is kept to tell it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES_MAX, 2)
        if not message:
            return
        assert len(os.listdir("/proc/self/task")) == 1, "threads do not live on in a copy"
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked.close()
            for number, stream in enumerate(descriptors):
                os.dup2(stream, number)
                os.close(stream)
            run(message.decode())
            return
        for stream in descriptors:
            os.close(stream)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(asked, [json.dumps(pid).encode()], [pidfd])
        os.close(pidfd)
