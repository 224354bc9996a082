"""POST /v1/snapshots/{id}/resume: the rest of a request, streamed or whole, as an ASGI application."""

import asyncio
from functools import partial

from pydantic import BaseModel, ConfigDict
from starlette.types import Receive, Scope, Send

from router.choice import Choice
from router.deliver import deliver
from router.dispatch import ChoiceSpec
from router.http import read_body, while_connected
from router.openai.bodies import parse_body
from router.openai.events import format_of
from router.response import Response
from router.shell import Shell
from router.snapshot_leg import KeptSnapshot
from router.snapshots.beside import TOKENS_INLINE_MAX, beside
from router.snapshots.folders import Folders, FoundSnapshot
from router.snapshots.running import Running
from router.snapshots.stored import StoredRequest, stored_request
from segue.errors import (
    Cancelled,
    DeadlineExceeded,
    ServingError,
    SnapshotSourceMismatch,
    WorkerUnavailable,
)
from segue.ids import RequestId


class ResumeBody(BaseModel):
    """How the rest is answered."""

    model_config = ConfigDict(extra="forbid", strict=True)
    stream: bool = False


class Resume:
    """Everything that can be wrong with a snapshot is an error status: a stream begins with the worker's first word."""

    def __init__(self, shell: Shell, folders: Folders) -> None:
        self._shell = shell
        self._folders = folders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shell = self._shell
        try:
            if shell.draining:
                raise WorkerUnavailable("the router is shutting down")
            body = parse_body(ResumeBody, await read_body(scope, receive, shell.config) or b"{}")
            await while_connected(receive, self._answer(scope, body.stream, send))
        except ServingError as error:
            shell.metrics.request_failed(error)
            # Nobody is there to be told that the client left.
            if not isinstance(error, Cancelled):
                raise

    async def _answer(self, scope: Scope, streamed: bool, send: Send) -> None:
        shell = self._shell
        found = await self._folders.find(scope["path_params"]["snapshot_id"])
        stored = await self._stored(found)
        timeout_s, left_s = shell.config.request_timeout_s, found.manifest.request.deadline_left_s
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("the request had no time left when its snapshot was taken")
        deadline = asyncio.get_running_loop().time() + (timeout_s if left_s is None else min(timeout_s, left_s))
        with shell.live.named(scope["request_id"]) as name:
            await deliver(
                shell, name, 1, lambda: self._begin(name, found, stored, deadline), streamed=streamed, send=send
            )

    async def _stored(self, found: FoundSnapshot) -> StoredRequest:
        """Raises what makes it impossible to go on with at any of these workers."""
        worker = found.links[0].description
        assert worker is not None, "only described workers are asked for snapshots"
        request = found.manifest.request
        stored = await beside(
            len(request.prompt) + len(request.output),
            TOKENS_INLINE_MAX,
            partial(stored_request, found.manifest, worker, self._shell.tokenizer),
        )
        wanted = stored.about.heading.model
        served = {link.description.model_name for link in found.links if link.description is not None}
        if wanted not in served:
            raise SnapshotSourceMismatch(
                f"the snapshot is of the model '{wanted}', its workers here serve {', '.join(sorted(served))}"
            )
        return stored

    def _begin(
        self, name: RequestId, found: FoundSnapshot, stored: StoredRequest, deadline: float
    ) -> tuple[Response, Running, float]:
        shell, request, about = self._shell, found.manifest.request, stored.about
        worker = found.links[0].description
        assert worker is not None, "only described workers are asked for snapshots"
        spec = ChoiceSpec(
            request_id=name,
            model=about.heading.model,
            eos_token_ids=worker.eos_token_ids,
            prompt=stored.planned.prompt,
            sampling=stored.planned.sampling,
            priority=request.priority,
            affinity=None,
            cache_salt=request.cache_salt,
            deadline=deadline,
            extension=bytes.fromhex(request.extension),
            emitted=stored.output,
            snapshot=KeptSnapshot(found.manifest.snapshot_id, frozenset(found.addresses)),
        )
        dispatch = shell.dispatch(spec)
        choice = Choice(0, 0, dispatch, stored.text, stored.earlier)
        form = format_of(about.endpoint, about.heading, about.include_usage)
        response = Response([choice], [len(request.prompt)], form, shell.metrics, about.heading.model)
        running = Running(
            endpoint=about.endpoint,
            heading=about.heading,
            include_usage=about.include_usage,
            text=about.text,
            planned=(stored.planned,),
            choices=(choice,),
        )
        return response, running, deadline
