"""Rights of files as an ordinary user has them, also where tests run as one who may read everything. Linux only."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Of linux/capability.h: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_READS_ALL = 1 << 1 | 1 << 2
_VERSION = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def unprivileged() -> Iterator[None]:
    """This thread respects the modes of files and folders while the block runs."""
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    _call(_libc.capget(ctypes.byref(header), sets))
    before = sets[0].effective
    sets[0].effective = before & ~_READS_ALL
    _call(_libc.capset(ctypes.byref(header), sets))
    try:
        yield
    finally:
        sets[0].effective = before
        _call(_libc.capset(ctypes.byref(header), sets))


def _call(returned: int) -> None:
    if returned != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
