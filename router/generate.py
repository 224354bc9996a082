"""POST /v1/chat/completions and /v1/completions: from a body to its answer, as an ASGI application each."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Receive, Scope, Send

from router.choice import Choice
from router.choice_text import ChoiceText
from router.deliver import deliver
from router.dispatch import ChoiceSpec
from router.http import header, read_body, while_connected
from router.openai.bodies import ChatBody, CompletionBody, parse_body
from router.openai.events import Endpoint, Heading, format_of
from router.openai.plan import Plan, PlannedChoice, plan_chat, plan_completion
from router.prompts import tokens_of_messages, tokens_of_prompts
from router.response import Response
from router.shell import Shell
from router.snapshots.running import Running
from segue.errors import Cancelled, InvalidRequest, ServingError, WorkerUnavailable
from segue.ids import RequestId

Planner = Callable[[bytes], Awaitable[Plan]]

_SESSION_CHARS_MAX = 256
# How response ids begin.
_PREFIXES = {Endpoint.CHAT: "chatcmpl", Endpoint.COMPLETION: "cmpl"}


class Generate:
    """One generating endpoint. `plan` reads its body."""

    def __init__(self, shell: Shell, plan: Planner, endpoint: Endpoint) -> None:
        self._shell = shell
        self._plan = plan
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._shell.draining:
                raise WorkerUnavailable("the router is shutting down")
            body = await read_body(scope, receive, self._shell.config)
            await while_connected(receive, self._answer(scope, body, send))
        except ServingError as error:
            self._shell.metrics.request_failed(error)
            # Nobody is there to be told that the client left.
            if not isinstance(error, Cancelled):
                raise

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        shell = self._shell
        deadline = asyncio.get_running_loop().time() + shell.config.request_timeout_s
        session = _session(scope)
        plan = await self._plan(body)
        asked: str = scope["request_id"]
        with shell.live.named(asked) as name:
            await deliver(
                shell,
                name,
                len(plan.choices),
                lambda: self._begin(plan, name, asked, session, deadline),
                streamed=plan.stream,
                send=send,
            )

    def _begin(
        self, plan: Plan, name: RequestId, asked: str, session: str | None, deadline: float
    ) -> tuple[Response, Running, float]:
        heading = Heading(
            id=f"{_PREFIXES[self._endpoint]}-{asked}",
            created=int(time.time()),
            model=plan.model.name,
            fingerprint=f"fp_{plan.model.fingerprint[:12]}",
            seed=plan.seed,
        )
        # Choices of one request share a prompt, so they share a worker, session or not.
        affinity = session if session is not None or len(plan.choices) == 1 else name
        choices = [self._choice(plan, choice, name, affinity, deadline) for choice in plan.choices]
        lengths = {choice.prompt_number: len(choice.prompt) for choice in plan.choices}
        form = format_of(self._endpoint, heading, plan.include_usage)
        running = Running(
            endpoint=self._endpoint,
            heading=heading,
            include_usage=plan.include_usage,
            text=plan.text,
            planned=plan.choices,
            choices=choices,
        )
        return Response(choices, list(lengths.values()), form, self._shell.metrics, plan.model.name), running, deadline

    def _choice(
        self, plan: Plan, choice: PlannedChoice, name: RequestId, affinity: str | None, deadline: float
    ) -> Choice:
        shell = self._shell
        # A worker tells choices of one request apart by their number among n, which begins again with each prompt.
        number = choice.prompt_number
        spec = ChoiceSpec(
            request_id=name if number == 0 else RequestId(f"{name}#{number}"),
            model=plan.model.name,
            eos_token_ids=plan.model.eos_token_ids,
            prompt=choice.prompt,
            sampling=choice.sampling,
            priority=plan.priority,
            affinity=affinity,
            cache_salt=plan.cache_salt,
            deadline=deadline,
            score_from=choice.score_from,
        )
        tokenizer = shell.tokenizer
        text = ChoiceText(tokenizer.token_bytes, tokenizer.special_ids, plan.text, choice)
        dispatch = shell.dispatch(spec)
        return Choice(choice.index, number, dispatch, text)


def chat_endpoint(shell: Shell) -> Generate:
    """POST /v1/chat/completions."""

    async def plan(raw: bytes) -> Plan:
        body = parse_body(ChatBody, raw)
        model = await shell.fleet.model(body.model)
        prompt = await tokens_of_messages(shell.tokenizer, body.messages, model.max_len - 1)
        return plan_chat(body, model, prompt, shell.config.choices_max)

    return Generate(shell, plan, Endpoint.CHAT)


def completion_endpoint(shell: Shell) -> Generate:
    """POST /v1/completions."""

    async def plan(raw: bytes) -> Plan:
        body = parse_body(CompletionBody, raw)
        model = await shell.fleet.model(body.model)
        prompts: Sequence[Sequence[int]] = await tokens_of_prompts(
            shell.tokenizer, body.prompt, shell.config.choices_max, model.max_len - 1
        )
        return plan_completion(body, model, prompts, shell.config.choices_max)

    return Generate(shell, plan, Endpoint.COMPLETION)


def _session(scope: Scope) -> str | None:
    value = header(scope, b"x-session-id")
    if value is None:
        return None
    if not 0 < len(value) <= _SESSION_CHARS_MAX:
        raise InvalidRequest(f"x-session-id must have 1 to {_SESSION_CHARS_MAX} characters", param="x-session-id")
    return value.decode("latin-1")
