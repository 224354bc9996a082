"""Names of live requests: the client's own where it sends a good one, never two alike inside."""

import asyncio
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from segue.errors import InvalidRequest
from segue.ids import RequestId

_GOOD = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_of(header: bytes | None) -> str:
    """The id of a request with that `x-request-id` header, or a new one. Raises InvalidRequest for a malformed one."""
    if header is None:
        return uuid.uuid4().hex
    asked = header.decode("latin-1")
    if _GOOD.fullmatch(asked) is None:
        raise InvalidRequest(
            "x-request-id must be 1 to 128 letters, digits or any of . _ : / + = @ -", param="x-request-id"
        )
    return asked


class LiveRequests:
    """The requests that are being served, by the name that workers see."""

    def __init__(self) -> None:
        self._live: set[str] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._live)

    @contextmanager
    def named(self, asked: str) -> Iterator[RequestId]:
        """Holds a name while the request lives: `asked`, with a suffix when a live request has that name already."""
        name = asked
        while name in self._live:
            name = f"{asked}~{uuid.uuid4().hex[:8]}"
        self._live.add(name)
        self._empty.clear()
        try:
            yield RequestId(name)
        finally:
            self._live.remove(name)
            if not self._live:
                self._empty.set()

    async def emptied(self) -> None:
        """Returns when no request is live."""
        await self._empty.wait()
