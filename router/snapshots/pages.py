"""The admin endpoints of snapshots but resuming: a page each; the key was asked for at the door."""

from collections.abc import AsyncIterator
from functools import partial

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from router.http import read_body
from router.openai.bodies import parse_body
from router.openai.events import error_object
from router.shell import Shell
from router.snapshots.beside import ENTRIES_INLINE_MAX, beside
from router.snapshots.export import Exports
from router.snapshots.folders import Folders, Listed
from segue.errors import InvalidRequest
from segue.wire import SnapshotSummary

_KINDS = {False: "export", True: "copy"}
_PIECE_BYTES = 256 << 10


class ExportBody(BaseModel):
    """Whether the request runs on."""

    model_config = ConfigDict(extra="forbid", strict=True)
    copies: bool = Field(False, alias="copy")


class SnapshotPages:
    """One method per path."""

    def __init__(self, shell: Shell, folders: Folders) -> None:
        self._shell = shell
        self._folders = folders
        self._exports = Exports(shell)

    async def take(self, request: Request) -> Response:
        """A snapshot of a live request, which leaves its worker unless it is copied."""
        raw = await read_body(request.scope, request.receive, self._shell.config)
        body = parse_body(ExportBody, raw or b"{}")
        asked: str = request.path_params["request_id"]
        taken = await (self._exports.copy(asked) if body.copies else self._exports.export(asked))
        return _json(
            {
                "id": taken.snapshot.snapshot_id,
                "request_id": taken.request_id,
                "kind": _KINDS[taken.copy],
                "computed": taken.snapshot.computed,
                "bytes": taken.snapshot.bytes,
            }
        )

    async def list(self, request: Request) -> Response:
        """All snapshots, the oldest first, and the workers that did not say what they have."""
        listed = await self._folders.listed()
        return _answer(await beside(len(listed.snapshots), ENTRIES_INLINE_MAX, partial(_list, listed)))

    async def inspect(self, request: Request) -> Response:
        """One snapshot's manifest; with `verify=true` after every digest was found right."""
        verify = request.query_params.get("verify", "false")
        if verify not in ("true", "false"):
            raise InvalidRequest("verify must be true or false", param="verify")
        found = await self._folders.find(request.path_params["snapshot_id"])
        if verify == "true":
            await self._folders.verify(found)
        head = {"id": found.manifest.snapshot_id, "where": found.addresses, "verified": verify == "true"}
        # The manifest is JSON already, and may be long: it goes out as it came, piece by piece.
        before, after = orjson.dumps(head)[:-1] + b',"manifest":', b"}"
        length = len(before) + len(found.raw) + len(after)
        return StreamingResponse(
            _pieces(before, found.raw, after),
            media_type="application/json",
            headers={"content-length": str(length)},
        )

    async def delete(self, request: Request) -> Response:
        """Removes one."""
        snapshot_id: str = request.path_params["snapshot_id"]
        await self._folders.delete(snapshot_id)
        return _json({"id": snapshot_id, "deleted": True})


async def _pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        for start in range(0, len(part), _PIECE_BYTES):
            yield part[start : start + _PIECE_BYTES]


def _list(listed: Listed) -> bytes:
    return orjson.dumps(
        {
            "snapshots": [{**_summary(stored), "where": where} for stored, where in listed.snapshots],
            "unanswered": [{"address": address, **error_object(error)} for address, error in listed.silent],
        }
    )


def _summary(stored: SnapshotSummary) -> dict[str, object]:
    return {
        "id": stored.snapshot_id,
        "request_id": stored.request_id,
        "kind": stored.kind,
        "created": stored.created_s,
        "bytes": stored.bytes,
        "computed": stored.computed,
        "tp_size": stored.tp_size,
        "claimed_by": stored.claimed_by,
        "refused": stored.refused,
    }


def _json(value: object) -> Response:
    return _answer(orjson.dumps(value))


def _answer(body: bytes) -> Response:
    return Response(body, media_type="application/json")
