"""Bytes that ended processes have left to the kernel to send; knows nothing of who they were.

A killed process's TCP connections live on without an owner until the other end has taken what was written to them. A
peer's write over TCP may so land long after its process is gone.
"""

from pathlib import Path

# FIN_WAIT1, LAST_ACK and CLOSING: closed at this end, and not all of it acknowledged by the other.
_UNSENT = {"04", "09", "0B"}
_NO_OWNER = "0"


def unsent_connections() -> frozenset[tuple[str, str]]:
    """Both ends of every TCP connection of this network namespace that has no owner any more and something to send."""
    found: set[tuple[str, str]] = set()
    # The second is missing where there is no IPv6.
    for path in (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6")):
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            local, remote, state, queues, inode = fields[1], fields[2], fields[3], fields[4], fields[9]
            if inode == _NO_OWNER and state in _UNSENT and int(queues.partition(":")[0], 16):
                found.add((local, remote))
    return frozenset(found)
