"""Under Ray: whatever is killed comes back by itself, streams go on, and nothing is left when it ends."""

import itertools
import os
import signal
from pathlib import Path

import httpx
import pytest

from deploy.family import family
from tests.cluster.command import segue
from tests.cluster.deployment import Deployment, actor, deployed_on_ray, gone
from tests.cluster.ray_nodes import ray_nodes
from tests.cluster.test_faults import answer, asked, client, tokens, until_readiness


def kill_actor(deployment: Deployment, name: str) -> None:
    """Kills the process of one of Ray's actors."""
    pid = actor(deployment, name)
    os.kill(pid, signal.SIGKILL)
    gone(pid)


def test_a_question_is_answered_and_the_status_shows_who_did(on_ray: Deployment) -> None:
    until_readiness(on_ray, 200)
    assert len(answer(on_ray)) == 60
    shown = segue("status", "--url", on_ray.url)
    assert shown.returncode == 0, shown.stderr
    head, *rows = shown.stdout.splitlines()
    assert head.split()[:4] == ["role", "worker", "address", "state"]
    assert on_ray.roles == ["prefill", "decode"]
    for role in on_ray.roles:
        (row,) = [row.split() for row in rows if on_ray.ready(role)[-1][0] in row]
        assert row[0] == role
        assert row[3] == "ready"
        assert "full" in row
    assert on_ray.status("decode").transfers.count > 0
    on_ray.emptied()


# That a prefill replica comes back is shown with a broken engine and a frozen process too.
@pytest.mark.parametrize("role", [pytest.param("prefill", marks=pytest.mark.slow), "decode"])
def test_a_stream_survives_the_death_of_a_replica(on_ray: Deployment, role: str) -> None:
    until_readiness(on_ray, 200)
    undisturbed = answer(on_ray)
    with client(on_ray) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 10))
        starts = on_ray.kill(role)
        assert begun + list(stream) == undisturbed
    on_ray.restarted(role, starts)
    until_readiness(on_ray, 200)
    assert answer(on_ray) == undisturbed
    on_ray.emptied()


def test_a_killed_router_comes_back_where_it_was(on_ray: Deployment) -> None:
    until_readiness(on_ray, 200)
    url = on_ray.url
    starts = on_ray.kill("router")
    on_ray.restarted("router", starts)
    assert on_ray.url == url
    until_readiness(on_ray, 200)
    assert len(answer(on_ray)) == 60


def test_without_its_directory_the_cluster_serves_on_and_the_next_one_learns_everything(on_ray: Deployment) -> None:
    until_readiness(on_ray, 200)
    undisturbed = answer(on_ray)
    with client(on_ray) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 10))
        kill_actor(on_ray, "DirectoryActor")
        assert begun + list(stream) == undisturbed
    assert httpx.get(f"{on_ray.url}/readiness", timeout=5).status_code == 200
    starts = on_ray.kill("decode")
    on_ray.restarted("decode", starts)
    until_readiness(on_ray, 200)
    assert answer(on_ray) == undisturbed


def test_a_killed_controller_comes_back_and_keeps_replicas_up_again(on_ray: Deployment) -> None:
    until_readiness(on_ray, 200)
    kill_actor(on_ray, "ServeController")
    assert len(answer(on_ray)) == 60
    starts = on_ray.kill("decode")
    on_ray.restarted("decode", starts)
    until_readiness(on_ray, 200)


@pytest.mark.slow
def test_stop_ends_everything() -> None:
    with deployed_on_ray() as deployment:
        everybody = family(deployment.process.pid)
        port = deployment.url.rpartition(":")[2]
        ended = segue("stop", "--port", port)
        assert ended.returncode == 0, ended.stderr
        assert deployment.process.wait(5) == 0
        for pid in everybody:
            gone(pid)


@pytest.mark.slow
def test_ctrl_c_finishes_what_runs_and_ends_everything() -> None:
    with deployed_on_ray("serve.drain_s=20") as deployment, client(deployment) as openai:
        undisturbed = answer(deployment)
        everybody = family(deployment.process.pid)
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 5))
        deployment.process.send_signal(signal.SIGINT)
        assert begun + list(stream) == undisturbed
        assert deployment.process.wait(40) == 0
        for pid in everybody:
            gone(pid)


@pytest.mark.slow
def test_a_killed_serve_leaves_no_orphan() -> None:
    with deployed_on_ray() as deployment:
        everybody = family(deployment.process.pid)
        deployment.process.kill()
        for pid in everybody:
            gone(pid)


@pytest.mark.slow
def test_a_replica_is_added_under_pressure_and_taken_away_after_it() -> None:
    pressed = ["both.replicas=1", "both.replicas_max=2", "both.target_requests=1", "ray.upscale_s=0"]
    with deployed_on_ray(*pressed, "ray.downscale_s=1") as deployment, client(deployment) as openai:
        streams = [asked(openai, max_tokens=3000) for _ in range(3)]
        deployment.restarted("both", 1)
        for stream in streams:
            stream.close()
        deployment.until(lambda: any("both" in line and "is gone" in line for line in deployment.lines), "a scale-down")
        until_readiness(deployment, 200)


def test_what_keeps_a_worker_from_starting_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ended = segue("serve", "--ray", "--port", "0", "--model", str(tmp_path), limit_s=120)
    assert ended.returncode == 2
    assert "cannot start" in ended.stderr
    assert str(tmp_path) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_nothing_to_stop_is_said() -> None:
    ended = segue("stop", "--port", "1")
    assert ended.returncode == 1
    assert "no `segue serve` runs here" in ended.stderr


@pytest.mark.slow
def test_a_drained_node_finishes_what_runs_while_another_takes_over() -> None:
    with (
        ray_nodes() as address,
        deployed_on_ray(f"ray.address={address}", "both.replicas=1", "serve.drain_s=30") as deployment,
        client(deployment) as openai,
    ):
        undisturbed = answer(deployment)
        before = deployment.node("both")
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 5))
        drained = segue("drain-node", "--ray-address", address, "--node", before, "--within", "60", limit_s=90)
        assert drained.returncode == 0, drained.stderr
        assert begun + list(stream) == undisturbed
        deployment.restarted("both", 1)
        assert deployment.node("both") != before
        until_readiness(deployment, 200)
        assert answer(deployment) == undisturbed


@pytest.mark.slow
def test_prefill_and_decode_apart_answer_as_one_worker_does(on_ray: Deployment) -> None:
    until_readiness(on_ray, 200)
    apart = answer(on_ray)
    with deployed_on_ray("both.replicas=1") as together:
        assert together.roles == ["both"]
        assert answer(together) == apart
        starts = together.kill("both")
        together.restarted("both", starts)
        until_readiness(together, 200)
        assert answer(together) == apart
