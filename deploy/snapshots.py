"""`segue snapshot`: a router's snapshots from a terminal, over its HTTP interface; reads no folder itself."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from deploy.answers import events, reaching, require_success
from segue.config import read_secret
from segue.errors import ConfigError, ServingError

KEY_VARIABLE = "SEGUE_ADMIN_KEY"
_HEAD = ("snapshot", "kind", "taken", "size", "positions", "ranks", "request", "claimed by", "refused", "where")


def admin_key(file: Path | None, environment: Mapping[str, str]) -> str:
    """What `router.admin_key` is, from a file or from the environment. Raises ConfigError when neither says."""
    key = environment.get(KEY_VARIABLE, "") if file is None else read_secret(file, "--admin-key-file", "admin-key-file")
    if not key:
        raise ConfigError(
            f"snapshots need the router's admin_key: name a file with --admin-key-file, or set {KEY_VARIABLE}",
            param="admin-key-file",
        )
    return key


class SnapshotClient:
    """The admin endpoints. They raise WorkerUnavailable when nobody answers, ServingError on refusal."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def export(self, request_id: str) -> dict[str, Any]:
        """The request leaves its worker; its client is told."""
        return self._call("POST", f"/v1/requests/{quote(request_id)}/snapshot", {"copy": False})

    def copy(self, request_id: str) -> dict[str, Any]:
        """The request runs on."""
        return self._call("POST", f"/v1/requests/{quote(request_id)}/snapshot", {"copy": True})

    def list(self) -> dict[str, Any]:
        return self._call("GET", "/v1/snapshots")

    def inspect(self, snapshot_id: str) -> dict[str, Any]:
        return self._call("GET", _path(snapshot_id))

    def verify(self, snapshot_id: str) -> dict[str, Any]:
        """The same, once every digest was found right."""
        return self._call("GET", f"{_path(snapshot_id)}?verify=true")

    def delete(self, snapshot_id: str) -> None:
        self._call("DELETE", _path(snapshot_id))

    def resume(self, snapshot_id: str) -> str:
        """The rest of the text."""
        answer = self._call("POST", f"{_path(snapshot_id)}/resume", {"stream": False})
        return "".join(_text(choice) for choice in answer["choices"])

    def resume_streaming(self, snapshot_id: str) -> Iterator[str]:
        """Pieces of it as they come."""
        path = f"{_path(snapshot_id)}/resume"
        with reaching(self._http), self._http.stream("POST", path, json={"stream": True}) as answer:
            for event in events(answer):
                for choice in event["choices"]:
                    yield _text(choice)

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        with reaching(self._http):
            answer = self._http.request(method, path, json=body)
        require_success(answer)
        try:
            said = answer.json()
        except ValueError as error:
            raise ServingError(f"{self._http.base_url} answered with no JSON: is that a router?") from error
        assert isinstance(said, dict), "a router answers with objects"
        return said


def taken(said: Mapping[str, Any]) -> str:
    """One line on a snapshot that was taken; it begins with its id."""
    size = _size(said["bytes"])
    return f"{said['id']}  {said['kind']} of {said['request_id']}, {said['computed']} positions, {size}"


def table(said: Mapping[str, Any]) -> str:
    """The list in columns; below it the workers that did not say what they have."""
    lines = [_HEAD, *(_row(entry) for entry in said["snapshots"])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    silent = [f"{entry['address']} does not say: {entry['error']['message']}" for entry in said["unanswered"]]
    return "\n".join([*shown, *([""] if silent else []), *silent])


def sheet(said: Mapping[str, Any]) -> str:
    """What a person wants to know of one manifest."""
    manifest = said["manifest"]
    request, state = manifest["request"], manifest["state"]
    spans = ", ".join(f"{name} [{start}, {stop})" for name, (start, stop) in sorted(state["components"].items()))
    left_s = request["deadline_left_s"]
    facts: Sequence[tuple[str, str]] = (
        ("snapshot", f"{said['id']}, format {manifest['version']}, by {manifest['build']}"),
        ("where", ", ".join(said["where"])),
        ("taken", f"{_when(manifest['created_s'])}, {request['kind']} of request {request['request_id']}"),
        ("tokens", f"{len(request['prompt'])} of the prompt, {len(request['output'])} of the output"),
        ("served", f"{request['served']} tokens of the output are with the client"),
        ("budget", f"{request['sampling'].get('max_tokens', '?')} tokens of output"),
        ("time left", "as the router gives" if left_s is None else f"{left_s:.1f} s"),
        ("state", f"{state['computed']} positions: {spans}"),
        ("payloads", ", ".join(f"{each['file']} {_size(each['bytes'])}" for each in manifest["payloads"])),
        ("identity", ", ".join(f"{name} {value}" for name, value in sorted(state["identity"].items())) or "none"),
        ("digests", "all right" if said["verified"] else "not read"),
    )
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in facts)


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        entry["id"],
        _known(entry["kind"]),
        "-" if entry["created"] is None else _when(entry["created"]),
        _size(entry["bytes"]),
        _known(entry["computed"]),
        _known(entry["tp_size"]),
        _known(entry["request_id"]),
        _known(entry["claimed_by"]),
        _known(entry["refused"]),
        ", ".join(entry["where"]),
    )


def _known(value: object) -> str:
    return "-" if value is None else str(value)


def _text(choice: Mapping[str, Any]) -> str:
    """Of a choice of either endpoint, streamed or whole."""
    message = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or message.get("content") or "")


def _path(snapshot_id: str) -> str:
    return f"/v1/snapshots/{quote(snapshot_id, safe='')}"


def _when(created_s: float) -> str:
    return datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
