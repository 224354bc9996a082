"""A whole router in this process: real sockets, real sessions, fake workers at their ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import segue.zoo
from router.config import RouterConfig
from router.link import LinkState
from router.server import Server
from router.shell import Shell
from router.text.tokenizer import Tokenizer
from segue.wire import GenerateSpec
from segue.wire.channel import PLAIN, TlsConfig
from tests.support.fake_worker import FakeWorker

QUICK = RouterConfig(
    port=0,
    queue_timeout_s=0.2,
    placement_wait_s=0.1,
    continuation_grace_s=5.0,
    reattach_grace_s=0.3,
    reconnect_wait_s=0.02,
    reconnect_wait_s_max=0.1,
    heartbeat_s=0.1,
    heartbeat_timeout_s=0.5,
    drain_s=5.0,
    breaker_cooldown_s=0.2,
)
WAIT_S = 20.0
ANSWER = "Three apples and two pears make 5 fruits."
END = 4


@cache
def tokenizer() -> Tokenizer:
    """The bundled model's."""
    return Tokenizer.from_folder(Path(segue.zoo.__file__).parent / "model")


def answer(spec: GenerateSpec) -> list[int]:
    """Every prompt gets the same answer, and an end."""
    return [*tokenizer().encode(ANSWER), END]


async def turn() -> None:
    """Lets everybody else run once."""
    await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Served:
    """A running router and clients of it."""

    url: str
    server: Server
    running: asyncio.Task[None]
    http: httpx.AsyncClient
    openai: AsyncOpenAI

    @property
    def shell(self) -> Shell:
        return self.server.shell

    async def until_ready(self, count: int = 1) -> None:
        """Waits until that many workers have a session."""
        fleet = self.shell.fleet
        async with asyncio.timeout(WAIT_S):
            while len(fleet.ready) < count:
                await fleet.wait_change(WAIT_S)

    async def until_asked(self) -> None:
        """Waits until a request is live."""
        async with asyncio.timeout(WAIT_S):
            while not self.shell.live:
                await turn()

    async def until_left(self) -> None:
        """Waits until no request is live."""
        async with asyncio.timeout(WAIT_S):
            await self.shell.live.emptied()

    async def until_stopped(self) -> None:
        """Waits until the server has ended."""
        async with asyncio.timeout(WAIT_S):
            await asyncio.shield(self.running)

    async def until_idle(self) -> None:
        """Waits until no request is live and nothing holds room; then nothing may be left on any session."""
        await self.until_left()
        assert self.shell.admission.inflight == 0
        assert self.shell.admission.waiting == 0
        assert all(link.load == 0 for link in self.shell.fleet.links if link.state is LinkState.READY)


@asynccontextmanager
async def served(
    *workers: FakeWorker | str,
    prefills: Sequence[FakeWorker | str] = (),
    config: RouterConfig = QUICK,
    tls: TlsConfig = PLAIN,
    ready: int | None = None,
) -> AsyncIterator[Served]:
    """A router over these workers, `ready` of which (all, unless told) have a session when the block begins."""
    server = Server(config, tokenizer(), _addresses(workers), _addresses(prefills), tls)
    running = asyncio.create_task(server.serve())
    host, port = server.address
    url = f"http://{host}:{port}"
    try:
        async with (
            # Nothing here is encrypted; to read the authorities of the world would take longer than most tests.
            httpx.AsyncClient(base_url=url, timeout=WAIT_S, verify=False) as http,
            AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key=config.api_key or "none",
                max_retries=0,
                timeout=WAIT_S,
                http_client=DefaultAsyncHttpxClient(verify=False),
            ) as openai,
        ):
            service = Served(url, server, running, http, openai)
            await asyncio.sleep(0)
            await service.until_ready(len(workers) if ready is None else ready)
            yield service
    finally:
        server.stop()
        server.stop()
        await running


def _addresses(workers: Sequence[FakeWorker | str]) -> list[str]:
    return [worker if isinstance(worker, str) else worker.address for worker in workers]
