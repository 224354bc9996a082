"""How a deployment ends: at once, wholly, and with a reason."""

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.cluster.command import segue
from tests.cluster.deployment import deployed, gone
from tests.cluster.test_faults import asked, client, tokens


def test_ctrl_c_ends_everything_also_under_a_running_stream() -> None:
    with deployed() as deployment, client(deployment) as openai:
        stream = tokens(asked(openai, max_tokens=3000))
        next(stream)
        pids = [deployment.ready(name)[-1][1] for name in ("prefill", "decode", "router")]
        started = time.monotonic()
        deployment.process.send_signal(signal.SIGINT)
        assert deployment.process.wait(20) == 0
        assert time.monotonic() - started < 10
        for pid in pids:
            gone(pid)


def test_a_killed_serve_leaves_no_orphan() -> None:
    with deployed() as deployment:
        pids = [deployment.ready(name)[-1][1] for name in ("prefill", "decode", "router")]
        os.kill(pids[0], signal.SIGSTOP)
        deployment.process.kill()
        for pid in pids:
            gone(pid)


def test_a_port_in_use_is_named_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = segue("serve", "--port", str(port))
    assert ended.returncode == 2
    assert f"port {port}" in ended.stderr


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    ended = segue("serve", "--port", "0", "--model", str(tmp_path / "nowhere"))
    assert ended.returncode == 2
    assert str(tmp_path / "nowhere") in ended.stderr


def test_a_model_folder_without_weights_is_given_up_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ended = segue("serve", "--no-ray", "--port", "0", "--model", str(tmp_path))
    assert ended.returncode == 2
    assert "model.safetensors" in ended.stderr
    assert re.search(r"(prefill|decode) 0 cannot start", ended.stderr)


@pytest.mark.parametrize("how", ["--ray", "--no-ray"])
def test_half_of_a_pair_is_refused_with_a_way_out(how: str) -> None:
    ended = segue("serve", how, "--port", "0", "--prefill", "1")
    assert ended.returncode == 2
    assert "decode.replicas is 0" in ended.stderr
    assert "--prefill 1 --decode 1" in ended.stderr


@pytest.mark.parametrize(("given", "missing"), [("decode", "prefill"), ("prefill", "decode")])
def test_a_router_by_hand_before_half_of_a_pair_is_refused(given: str, missing: str) -> None:
    ended = segue("router", "--port", "0", f"--{given}", "127.0.0.1:1", "--worker", "127.0.0.1:2")
    assert ended.returncode == 2
    assert f"--{missing}" in ended.stderr


def test_an_unknown_setting_is_named() -> None:
    ended = segue("serve", "--set", "engine.speed=9")
    assert ended.returncode == 2
    assert "engine.speed" in ended.stderr


def test_a_chat_without_a_server_says_so() -> None:
    ended = segue("chat", "--url", "http://127.0.0.1:9", stdin="hello\n")
    assert ended.returncode == 1
    assert "does not answer" in ended.stderr
