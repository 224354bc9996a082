"""A replica that Serve ends drains like any other worker: it does not count as broken because nobody watches it now."""

import asyncio

from deploy.worker_replica import _Life
from tests.router.served import turn


class Hosted:
    """A host that remembers whether it was broken when it was stopped."""

    def __init__(self) -> None:
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.drained: bool | None = None

    async def stop(self) -> None:
        self.drained = not self.broken.done()


class Registered:
    def enter(self) -> None:
        pass

    async def leave(self) -> None:
        pass


async def test_a_worker_whose_replica_is_ended_is_drained() -> None:
    host = Hosted()
    life = _Life(host, Registered())  # type: ignore[arg-type]
    await turn()
    await life.stop()
    assert host.drained
