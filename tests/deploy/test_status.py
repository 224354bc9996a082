"""The status table says of every worker what its router and itself know, also when one says nothing."""

from pathlib import Path

import pytest

from decode_service.host import Host
from deploy.status import ask, table
from kv_transfer.hosting.config import WorkerConfig
from segue.errors import ConfigError, WorkerUnavailable
from segue.wire import CacheFigures, CacheHits
from segue.wire.channel import PLAIN, TlsConfig
from tests.decode_service.engines import ScriptedRunner, scripted
from tests.router.served import answer, served
from tests.support.certificates import certificates
from tests.support.fake_worker import FakeWorker


async def test_a_worker_that_answers_and_one_that_does_not() -> None:
    async with FakeWorker(answer) as worker, served(worker, "127.0.0.1:1", ready=1) as router:
        worker.tp_size = 2
        head, up, down, _, reason, _ = table(await ask(router.url, PLAIN)).splitlines()
    assert head.split()[:5] == ["role", "worker", "address", "state", "ranks"]
    assert up.split()[2:6] == [worker.address, "ready", "2", "0"]
    assert up.split()[-10:] == ["-", "0", "/", "0", "full", "5", "+", "2", "/", "10"]
    assert down.split() == ["?", "?", "127.0.0.1:1", "connecting", "?", "0", "?", "?", "?", "?", "?"]
    assert reason.startswith("127.0.0.1:1 says nothing of itself: ")


async def test_of_what_was_looked_up_the_reused_share_is_shown_beside_what_is_cached() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        worker.cache = CacheFigures(looked_up_tokens=200, hits=(CacheHits("recurrent", 90), CacheHits(None, 60)))
        head, up = table(await ask(router.url, PLAIN)).splitlines()
    assert head.split()[-8:] == ["reused", "retracted", "pools", "(used", "+", "cached", "/", "all)"]
    assert up.split()[-10:] == ["75%", "0", "/", "0", "full", "5", "+", "2", "/", "10"]


async def test_where_all_answer_nothing_follows_the_table() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        assert len(table(await ask(router.url, PLAIN)).splitlines()) == 2


async def test_workers_with_certificates_answer_those_who_show_one(tmp_path: Path) -> None:
    tls = certificates(tmp_path / "ours")
    worker = Host(WorkerConfig(), tls=tls)
    await worker.start(lambda: scripted(ScriptedRunner()))
    try:
        async with served(worker.address, tls=tls) as router:
            shown = table(await ask(router.url, tls))
            hidden = table(await ask(router.url, PLAIN))
    finally:
        await worker.stop()
    _, up = shown.splitlines()
    assert up.split()[:3] == ["both", worker.worker.worker_id, worker.address]
    assert "?" not in up
    assert "recurrent 0 + 0 / 8" in up
    assert "--set tls." in hidden
    assert hidden.splitlines()[1].split()[-4:] == ["?", "?", "?", "?"]


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pem")
    async with FakeWorker(answer) as worker, served(worker) as router:
        with pytest.raises(ConfigError, match=r"absent\.pem"):
            await ask(router.url, TlsConfig(certificate=absent, key=absent, authority=absent))


async def test_a_router_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkerUnavailable, match=r"127\.0\.0\.1:1"):
        await ask("http://127.0.0.1:1", PLAIN)
