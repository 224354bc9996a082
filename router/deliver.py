"""From room at the front door to the last byte of an answer, for requests that are new and that are resumed."""

import asyncio
import logging
from collections.abc import Callable

from starlette.types import Send

from router.http import send_bytes
from router.response import SEND_GRACE_S, Response
from router.shell import Shell
from router.snapshots.running import Running
from segue.ids import RequestId

log = logging.getLogger("segue.router")


async def deliver(
    shell: Shell,
    name: RequestId,
    choice_count: int,
    begin: Callable[[], tuple[Response, Running, float]],
    *,
    streamed: bool,
    send: Send,
) -> None:
    """Answers the request that `begin` starts: its response, how a snapshot sees it, and its deadline."""
    async with shell.admission.room(choice_count):
        response, running, deadline = begin()
        with shell.running.holding(name, running):
            try:
                if streamed:
                    await response.stream(send, deadline, running.include_usage)
                    return
                collected = await response.collect()
            finally:
                response.close()
    # Without room: no worker has part in this any more, and a client that takes nothing keeps none from others.
    try:
        async with asyncio.timeout_at(deadline + SEND_GRACE_S):
            await send_bytes(send, collected, b"application/json")
    except TimeoutError:
        log.warning("a client did not take what was sent to it within the time of its request")
