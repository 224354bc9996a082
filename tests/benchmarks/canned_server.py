"""An HTTP server that answers every connection with the same bytes, cut where the test says."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(content: bytes) -> bytes:
    """`content` as one chunk of a chunked body."""
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


@asynccontextmanager
async def canned_server(pieces: Sequence[bytes]) -> AsyncIterator[str]:
    """Yields the address of a server that reads a request and writes `pieces`, one send each, and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
