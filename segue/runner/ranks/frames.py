"""Messages between two processes over a pair of sockets that nobody else has: integers under a number, or bytes."""

import contextlib
import socket
import struct

import numpy as np

from segue.batch.step import IntArray

_HEAD = struct.Struct("<qq")


class Frames:
    """One end. Everything raises OSError when the other end is gone or takes no part within the limit."""

    def __init__(self, connection: socket.socket, limit_s: float | None = None) -> None:
        """`limit_s` bounds every wait; None: for ever."""
        connection.settimeout(limit_s)
        self._connection = connection

    def put(self, number: int, values: IntArray) -> None:
        """Integers under a number."""
        self._connection.sendall(_HEAD.pack(number, values.nbytes) + values.tobytes())

    def take(self) -> tuple[int, IntArray]:
        """The number and the integers of the next message."""
        number, size = self._head()
        return number, np.frombuffer(self._read(size), dtype=np.int64)

    def put_bytes(self, data: bytes) -> None:
        self._connection.sendall(_HEAD.pack(0, len(data)) + data)

    def take_bytes(self, limit_s: float | None = None) -> bytes:
        """The bytes of the next message; `limit_s` holds for this call."""
        before = self._connection.gettimeout()
        if limit_s is not None:
            self._connection.settimeout(limit_s)
        try:
            return bytes(self._read(self._head()[1]))
        finally:
            self._connection.settimeout(before)

    def shut(self) -> None:
        """Whoever waits at either end waits no longer."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _head(self) -> tuple[int, int]:
        number, size = _HEAD.unpack(self._read(_HEAD.size))
        return number, size

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = self._connection.recv_into(view[done:])
            if not count:
                raise ConnectionResetError("the other end has closed the connection")
            done += count
        return data
