"""The status table says of every worker what its router and itself know, also when one says nothing."""

import pytest

from deploy.status import ask, table
from segue.errors import WorkerUnavailable
from tests.router.served import answer, served
from tests.support.fake_worker import FakeWorker


async def test_a_worker_that_answers_and_one_that_does_not() -> None:
    async with FakeWorker(answer) as worker, served(worker, "127.0.0.1:1", ready=1) as router:
        head, up, down = table(await ask(router.url)).splitlines()
    assert head.split()[:4] == ["role", "worker", "address", "state"]
    assert up.split()[2:5] == [worker.address, "ready", "0"]
    assert " / " in up
    assert down.split() == ["?", "?", "127.0.0.1:1", "connecting", "0", "?", "?", "?"]


async def test_a_router_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkerUnavailable, match=r"127\.0\.0\.1:1"):
        await ask("http://127.0.0.1:1")
