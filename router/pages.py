"""Everything a router answers that is no generation: models, workers, probes, metrics, tokens."""

import asyncio
import time
from importlib.metadata import version

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.breaker import BreakerState
from router.dispatch import ChoiceSpec
from router.http import read_body
from router.link import Link, LinkState
from router.metrics import CONTENT_TYPE, WorkerSample
from router.openai.bodies import DetokenizeBody, TokenizeBody, parse_body
from router.prompts import INLINE_CHARS_MAX, tokens_of_messages, tokens_of_prompts
from router.shell import Shell
from segue.batch.sampling import SamplingParams
from segue.errors import InvalidRequest, ServingError, WorkerUnavailable
from segue.ids import RequestId

HEALTH_GENERATE_TIMEOUT_S = 20.0


class Pages:
    """One method per path."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._started_at = int(time.time())

    async def models(self, request: Request) -> Response:
        listed = [
            {
                "id": model.name,
                "object": "model",
                "created": self._started_at,
                "owned_by": "segue",
                "max_model_len": model.max_len,
            }
            for model in self._shell.fleet.models()
        ]
        return _json({"object": "list", "data": listed})

    async def model(self, request: Request) -> Response:
        model = await self._shell.fleet.model(request.path_params["name"])
        return _json({"id": model.name, "object": "model", "created": self._started_at, "owned_by": "segue"})

    async def version(self, request: Request) -> Response:
        return _json({"version": version("segue")})

    async def workers(self, request: Request) -> Response:
        """Every worker as this router sees it."""
        now = asyncio.get_running_loop().time()
        listed = []
        fleet = self._shell.fleet
        for link in fleet.links:
            about = link.description
            listed.append(
                {
                    "address": link.address,
                    "state": link.state.value if fleet.takes(link) else "leaving",
                    "breaker": link.breaker.state(now).value,
                    "load": link.load,
                    "worker_id": None if about is None else about.worker_id,
                    "role": None if about is None else about.role,
                    "model": None if about is None else about.model_name,
                    "max_len": None if about is None else about.max_len,
                    "fingerprint": None if about is None else about.fingerprint,
                }
            )
        for worker in fleet.prefills.workers:
            about = worker.description
            listed.append(
                {
                    "address": worker.address,
                    "state": "ready" if worker.ready else "connecting",
                    "breaker": worker.breaker.state(now).value,
                    "load": worker.load,
                    "worker_id": None if about is None else about.worker_id,
                    "role": "prefill",
                    "model": None if about is None else about.model_name,
                    "max_len": None if about is None else about.max_len,
                    "fingerprint": None if about is None else about.fingerprint,
                }
            )
        return _json({"workers": listed})

    async def liveness(self, request: Request) -> Response:
        """200 as long as the event loop turns."""
        return _json({"status": "ok"})

    async def readiness(self, request: Request) -> Response:
        """200 when new requests are taken and would find a worker."""
        if self._shell.draining:
            raise WorkerUnavailable("the router is shutting down")
        return await self.health(request)

    async def health(self, request: Request) -> Response:
        """200 when some worker can serve."""
        now = asyncio.get_running_loop().time()
        fleet = self._shell.fleet
        able = [
            link
            for link in fleet.ready
            if link.breaker.state(now) is not BreakerState.OPEN and fleet.has_prefill(link, now)
        ]
        if not able:
            raise WorkerUnavailable("no worker is ready")
        return _json({"status": "ok", "ready_workers": len(able)})

    async def health_generate(self, request: Request) -> Response:
        """200 when one token could be generated, all the way down and back."""
        shell = self._shell
        model = await shell.fleet.model(None)
        begun_at = asyncio.get_running_loop().time()
        with shell.live.named(f"health-{request.scope['request_id']}") as name:
            spec = ChoiceSpec(
                request_id=RequestId(name),
                model=model.name,
                eos_token_ids=model.eos_token_ids,
                prompt=tuple(shell.tokenizer.encode("1 + 1 =")),
                sampling=SamplingParams(seed=0, temperature=0.0, max_tokens=1),
                priority=0,
                affinity=None,
                cache_salt="",
                deadline=begun_at + HEALTH_GENERATE_TIMEOUT_S,
            )
            dispatch = shell.dispatch(spec)
            try:
                ended = False
                while not ended:
                    ended = (await dispatch.take()).ended is not None
            finally:
                dispatch.close()
        return _json({"status": "ok", "seconds": asyncio.get_running_loop().time() - begun_at})

    async def metrics(self, request: Request) -> Response:
        shell = self._shell
        samples = await asyncio.gather(*(_sample(link) for link in shell.fleet.links))
        samples += [
            WorkerSample(one.address, one.description.model_name if one.description else "", one.status)
            for one in shell.fleet.prefills.workers
        ]
        page = shell.metrics.page(shell.admission.inflight, shell.admission.waiting, samples)
        return Response(page, media_type=CONTENT_TYPE.decode())

    async def tokenize(self, request: Request) -> Response:
        shell = self._shell
        body = parse_body(TokenizeBody, await read_body(request.scope, request.receive, shell.config))
        model = await shell.fleet.model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("send either prompt or messages", param="prompt")
        if body.messages is not None:
            tokens = await tokens_of_messages(shell.tokenizer, body.messages)
        else:
            assert body.prompt is not None, "one of the two was sent"
            tokens = list((await tokens_of_prompts(shell.tokenizer, body.prompt, 1))[0])
        return _json({"tokens": tokens, "count": len(tokens), "max_model_len": model.max_len})

    async def detokenize(self, request: Request) -> Response:
        shell = self._shell
        body = parse_body(DetokenizeBody, await read_body(request.scope, request.receive, shell.config))
        model = await shell.fleet.model(body.model)
        for token in body.tokens:
            if token >= model.vocab_size:
                raise InvalidRequest(f"token {token} is outside the vocabulary of {model.vocab_size}", param="tokens")
        if len(body.tokens) <= INLINE_CHARS_MAX:
            return _json({"prompt": shell.tokenizer.decode(body.tokens)})
        return _json({"prompt": await asyncio.to_thread(shell.tokenizer.decode, body.tokens)})


async def _sample(link: Link) -> WorkerSample:
    model = "" if link.description is None else link.description.model_name
    if link.state is not LinkState.READY:
        return WorkerSample(link.address, model, None)
    try:
        return WorkerSample(link.address, model, await link.status())
    except ServingError:
        return WorkerSample(link.address, model, None)


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
