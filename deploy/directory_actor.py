"""The directory as a small named Ray actor, and the way to it for everybody else; decides nothing.

The actor may die at any time: Ray starts it again, whoever calls it next makes it when there is none, and heartbeats
fill it.
"""

import asyncio
import os
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from deploy.directory import Directory, Entry, Membership
from segue.errors import WorkerUnavailable

NAME = "directory"
NAMESPACE = "segue"
_CALL_S = 2.0


class DirectoryActor:
    """One per cluster."""

    def __init__(self, lease_s: float) -> None:
        self._directory = Directory(lease_s, time.monotonic)

    def beat(self, entry: Entry) -> None:
        self._directory.beat(entry)

    def leave(self, member_id: str) -> None:
        self._directory.leave(member_id)

    def members(self) -> Membership:
        return self._directory.members()

    def pid(self) -> int:
        return os.getpid()


class DirectoryClient:
    """Calls from one event loop. Every failure is WorkerUnavailable, and the next call looks for the actor anew."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._actor: Any = None

    async def beat(self, entry: Entry) -> None:
        await self._call("beat", entry)

    async def leave(self, member_id: str) -> None:
        await self._call("leave", member_id)

    async def members(self) -> Membership:
        found: Membership = await self._call("members")
        return found

    async def _call(self, method: str, *args: object) -> Any:  # noqa: ANN401  what the actor's method returns
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(find_directory, self._lease_s)
            async with asyncio.timeout(_CALL_S):
                return await getattr(self._actor, method).remote(*args)
        except (RayError, TimeoutError, ValueError) as error:
            # ValueError is Ray's word for a name that was taken between looking and making.
            self._actor = None
            raise WorkerUnavailable(f"the directory does not answer: {error}") from error


def find_directory(lease_s: float) -> Any:  # noqa: ANN401  Ray's handles have no types
    """The actor; made when there is none. Blocks for as long as the cluster needs to answer."""
    options = {
        "name": NAME,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
    }
    return ray.remote(DirectoryActor).options(**options).remote(lease_s)


def ask_directory(lease_s: float, timeout_s: float) -> Membership:
    """Everybody who serves, for a caller without an event loop. Raises WorkerUnavailable."""
    try:
        found: Membership = ray.get(find_directory(lease_s).members.remote(), timeout=timeout_s)
    except (RayActorError, GetTimeoutError, ValueError) as error:
        raise WorkerUnavailable(f"the directory does not answer: {error}") from error
    return found


def end_directory() -> None:
    """Ends the actor for good, if there is one."""
    try:
        actor = ray.get_actor(NAME, namespace=NAMESPACE)
    except ValueError:
        return
    ray.kill(actor, no_restart=True)
