"""Probes, pages and the small endpoints."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.router.reading import reading
from tests.router.served import answer, served, tokenizer
from tests.support.fake_worker import FakeWorker

ASK = {"prompt": "x", "max_tokens": 64}


async def test_the_metrics_page_parses_and_counts() -> None:
    async with FakeWorker(answer, cached_tokens=1) as worker, served(worker, "127.0.0.1:1", ready=1) as router:
        for stream in (False, True):
            assert (await router.http.post("/v1/completions", json={**ASK, "stream": stream})).status_code == 200
        assert (await router.http.post("/v1/completions", json={"prompt": ""})).status_code == 400
        page = await router.http.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page.text)
            for sample in family.samples
        }
        prompt = len(tokenizer().encode("x"))
        output = len(answer(worker.specs[0]))
        model = ("model_name", "fake")
        assert samples["vllm:num_requests_running",] == 0
        assert samples["vllm:num_requests_waiting",] == 0
        assert samples["vllm:prompt_tokens_total", model] == 2 * prompt
        assert samples["vllm:generation_tokens_total", model] == 2 * output
        assert samples["vllm:prefix_cache_queries_total", model] == 2 * prompt
        assert samples["vllm:prefix_cache_hits_total", model] == 2
        assert samples["vllm:time_to_first_token_seconds_count", model] == 2
        assert samples["vllm:e2e_request_latency_seconds_count", model] == 2
        assert samples["vllm:request_success_total", ("finished_reason", "stop"), model] == 2
        assert samples["segue:request_failures_total", ("code", "invalid_request")] == 1
        assert samples["segue:worker_up", ("worker", worker.address)] == 1
        assert samples["segue:worker_up", ("worker", "127.0.0.1:1")] == 0
        assert samples["vllm:kv_cache_usage_perc", model, ("worker", worker.address)] == 0.5
        names = {name for name, *_ in samples}
        assert "vllm:inter_token_latency_seconds_bucket" in names


async def test_what_runs_and_waits_is_seen_while_it_does() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http, n=3):
        await worker.until(lambda: len(worker.live) == 3)
        page = (await router.http.get("/metrics")).text
        assert "vllm:num_requests_running 3.0" in page
        assert f'segue:worker_running{{worker="{worker.address}"}} 3.0' in page


async def test_the_generating_probe_goes_all_the_way_down() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        assert (await router.http.get("/health_generate")).status_code == 200
        assert len(worker.specs) == 1
        assert worker.specs[0].sampling.max_tokens == 1
        await worker.stop()
        await router.until_left()
        got = await router.http.get("/health_generate")
        assert got.status_code == 503
        assert got.json()["error"]["code"] == "worker_unavailable"


async def test_workers_models_and_version_are_listed() -> None:
    async with FakeWorker(answer, max_len=77) as worker, served(worker) as router:
        (listed,) = (await router.http.get("/workers")).json()["workers"]
        assert listed["address"] == worker.address
        assert (listed["state"], listed["breaker"], listed["load"]) == ("ready", "closed", 0)
        assert (listed["worker_id"], listed["model"], listed["max_len"]) == ("w", "fake", 77)
        (model,) = (await router.http.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("fake", "model", 77)
        assert (await router.http.get("/version")).json()["version"]


async def test_tokens_go_there_and_back() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = (await router.http.post("/tokenize", json={"prompt": "three äpfel 🍎"})).json()
        assert got["tokens"] == tokenizer().encode("three äpfel 🍎")
        assert got["count"] == len(got["tokens"])
        assert got["max_model_len"] == 4096
        back = await router.http.post("/detokenize", json={"tokens": got["tokens"]})
        assert back.json() == {"prompt": "three äpfel 🍎"}
        messages = [{"role": "user", "content": "hi"}]
        chat = (await router.http.post("/tokenize", json={"messages": messages})).json()
        assert chat["tokens"] == tokenizer().apply_chat_template(messages)
        for wrong in ({}, {"prompt": "x", "messages": messages}):
            assert (await router.http.post("/tokenize", json=wrong)).status_code == 400
        for tokens in ([2048], [-1], "x", [1.5]):
            assert (await router.http.post("/detokenize", json={"tokens": tokens})).status_code == 400


async def test_a_session_keeps_its_worker() -> None:
    async with FakeWorker(answer) as a, FakeWorker(answer, worker_id="b") as b, served(a, b) as router:
        for session in ("one", "two", "three"):
            a.specs.clear()
            b.specs.clear()
            for _ in range(4):
                await router.http.post("/v1/completions", json=ASK, headers={"x-session-id": session})
            assert sorted((len(a.specs), len(b.specs))) == [0, 4]
        got = await router.http.post("/v1/completions", json=ASK, headers={"x-session-id": "x" * 300})
        assert got.status_code == 400


async def test_choices_of_one_request_share_a_worker() -> None:
    async with FakeWorker(answer) as a, FakeWorker(answer, worker_id="b") as b, served(a, b) as router:
        await asyncio.gather(*(router.http.post("/v1/completions", json={**ASK, "n": 4}) for _ in range(2)))
        assert len(a.specs) % 4 == 0
        assert len(b.specs) % 4 == 0
