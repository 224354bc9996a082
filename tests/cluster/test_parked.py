"""The only worker of `segue serve` is told to end while streams run: they wait for its successor, from their state."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.cluster.deployment import deployed
from tests.cluster.test_faults import until_readiness
from tests.cluster.test_snapshots import Reading, ask, begun, body, http, settings, snapshots_in

STREAMS = 4


def counted(client: httpx.Client, name: str) -> int:
    """A counter of the router."""
    lines = client.get("/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith(f"{name} ")).split()[1]))


@pytest.mark.parametrize("role", ["both", "decode"])
def test_what_runs_survives_the_restart_of_the_only_worker_with_its_state(tmp_path: Path, role: str) -> None:
    replicas = ["both.replicas=1"] if role == "both" else ["prefill.replicas=1", "decode.replicas=1"]
    asked = body(500)
    several = {**asked, "n": 2, "stream": False}
    with (
        deployed(*settings(tmp_path, *replicas)) as deployment,
        http(deployment) as client,
        ThreadPoolExecutor(STREAMS + 1) as beside,
    ):
        until_readiness(deployment, 200)
        whole = [choice["text"] for choice in client.post("/v1/completions", json=several).json()["choices"]]
        assert whole[0] != whole[1]
        reads = [Reading(first=threading.Event()) for _ in range(STREAMS)]
        asking = [beside.submit(ask, client, asked, f"stream-{n}", read) for n, read in enumerate(reads)]
        answering = beside.submit(client.post, "/v1/completions", json=several)
        for read in reads:
            begun(read)
        deployment.until_running(role, STREAMS + 2)
        starts = deployment.kill(role, signal.SIGTERM)
        for each in asking:
            each.result(100)
        assert [read.text for read in reads] == [whole[0]] * STREAMS
        assert {read.reason for read in reads} == {"length"}
        answer = answering.result(100).json()
        assert [choice["text"] for choice in answer["choices"]] == whole
        assert answer["usage"]["completion_tokens"] == 2 * 500
        deployment.restarted(role, starts)
        deployment.emptied()
        # The new process has computed nothing again: it went on from what the old one had written.
        status = deployment.status(role)
        assert (status.retraction.restored, status.prefill_tokens) == (STREAMS + 2, 0)
        assert counted(client, "segue:parked_streams_total") == STREAMS + 2
        assert counted(client, "segue:unparked_streams_total") == STREAMS + 2
        assert counted(client, "segue:continuations_total") == 0
        assert snapshots_in(tmp_path) == []
