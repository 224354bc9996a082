"""Asks whether anybody listens at an address; what a process that is gone shows at once, and a frozen one never."""

import asyncio
import contextlib
import socket


async def nobody_listens(address: str, timeout_s: float) -> bool:
    """Whether a connection to `address`, host:port, is refused, by all that its name stands for.

    False when that cannot be told in time: silence, a reset or a name that is not known are no proof of anything.
    """
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            # One after another: the first that does not refuse ends it.
            for *_, there in found:
                if not await _refused(str(there[0]), int(there[1])):
                    return False
    except (OSError, UnicodeError):
        return False
    return bool(found)


async def _refused(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return False
