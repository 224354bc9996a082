"""`segue serve`: the applications on Ray, watched and shown until told to end; Serve keeps them up, not we."""

import dataclasses
import os
import signal
import socket
import threading
import time
from types import FrameType

import httpx
from ray.serve import RunTarget

from deploy.app import reachable, router_app, worker_app
from deploy.console import Console
from deploy.directory import Entry, Membership, Part
from deploy.exits import EXIT_FAILED, EXIT_OK
from deploy.guard import guarded
from deploy.ray_cluster import RayCluster, application_name
from deploy.record import record_folder, recorded
from deploy.serve import check, invitation
from deploy.settings import Settings
from deploy.worker_replica import BuildEngine, build_engine
from segue.errors import WorkerUnavailable

_LOOK_S = 0.25
_READINESS_S = 5.0
_NODE_DIGITS = 8


def serve_on_ray(settings: Settings, console: Console, log_level: str, build: BuildEngine = build_engine) -> int:
    """Runs until SIGINT or SIGTERM; a second one ends everything at once. `build` makes the engine of every worker.

    Raises ConfigError for what cannot work, and WorkerUnavailable when the deployment does not become ready.
    """
    settings = _settled(settings)
    applications = [
        *(
            RunTarget(worker_app(settings, role, log_level, build), application_name(Part(role)), None)
            for role in settings.roles
        ),
        RunTarget(router_app(settings, log_level), application_name(Part.ROUTER), None),
    ]
    cluster = RayCluster(settings.ray.address)
    begun = time.monotonic()
    console.say("starting Ray on this machine" if not cluster.address else f"joining Ray at {cluster.address}")
    with recorded(record_folder(), settings.router.port), guarded(os.getpid()):
        try:
            cluster.connect()
            stop = _Stop(console, cluster.address)
            logs = f"; its logs are in {cluster.log_folder}" if cluster.log_folder else ""
            console.say(f"Ray is up after {time.monotonic() - begun:.1f} s{logs}")
            cluster.run(applications)
            _Watch(settings, cluster, console, begun).run_until(stop)
            console.say(f"ending; requests get {settings.serve.drain_s:.0f} s to finish")
            cluster.end_applications()
        finally:
            cluster.end()
    console.say("everything has ended")
    return EXIT_OK


class _Watch:
    """Who serves, as far as a person was told."""

    def __init__(self, settings: Settings, cluster: RayCluster, console: Console, begun: float) -> None:
        self._settings = settings
        self._cluster = cluster
        self._console = console
        self._begun = begun
        self._known: dict[str, Entry] = {}

    def run_until(self, stop: "_Stop") -> None:
        """Shows who comes and goes. Raises what keeps the deployment from becoming ready."""
        give_up_at = time.monotonic() + self._settings.serve.start_s
        ready = False
        while not stop.wait(_LOOK_S):
            self._look()
            if ready:
                continue
            self._cluster.require_startable()
            if time.monotonic() > give_up_at:
                raise WorkerUnavailable(f"the deployment was not ready within {self._settings.serve.start_s:.0f} s")
            ready = self._complete()
            if ready:
                url = self._of(Part.ROUTER)[0].address
                self._console.say(f"everything is ready after {time.monotonic() - self._begun:.1f} s")
                self._console.say(invitation(self._settings, url))

    def _look(self) -> None:
        """Tells who came and who went since the last time."""
        try:
            members = self._cluster.members(self._settings.ray.lease_s)
        except WorkerUnavailable as error:
            self._console.say(error.message.splitlines()[0])
            return
        now = _by_id(members)
        for member_id, entry in now.items():
            if member_id not in self._known:
                self._console.say(f"{_name(entry)} is ready on {entry.address} ({_where(entry)}, {self._after()})")
        gone = [self._known[member_id] for member_id in self._known.keys() - now.keys()]
        if not members.complete:
            now = {**self._known, **now}
        else:
            for entry in gone:
                self._console.say(f"{_name(entry)} on {entry.address} is gone")
        self._known = now

    def _complete(self) -> bool:
        """Whether every role has its replicas and the router says that it is ready."""
        if any(len(self._of(Part(role))) < self._settings.replicas(role).replicas for role in self._settings.roles):
            return False
        routers = self._of(Part.ROUTER)
        if len(routers) < self._settings.ray.routers:
            return False
        try:
            return httpx.get(f"{routers[0].address}/readiness", timeout=_READINESS_S).status_code == 200
        except httpx.TransportError:
            return False

    def _of(self, part: Part) -> list[Entry]:
        return [entry for entry in self._known.values() if entry.part is part]

    def _after(self) -> str:
        return f"after {time.monotonic() - self._begun:.1f} s"


class _Stop:
    """SIGINT and SIGTERM, from when it is made: the first asks, the second does not."""

    def __init__(self, console: Console, joined: str) -> None:
        self._console = console
        self._joined = joined
        self._asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._told)

    def wait(self, timeout_s: float) -> bool:
        """Whether it was asked for by then."""
        return self._asked.wait(timeout_s)

    def _told(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            if self._joined:
                self._console.say(f"leaving at once; `segue stop --ray-address {self._joined}` ends what still runs")
            else:
                self._console.say("killing everything")
            # The kernel ends a Ray that was started here together with us.
            os._exit(EXIT_FAILED)
        self._asked.set()


def _settled(settings: Settings) -> Settings:
    """Settings as the replicas get them: a known port, and drain budgets that fit serve's own."""
    check(settings)
    drain_s = settings.serve.drain_s
    # A router that is started again must be found where it was, also when the system chose its port.
    port = settings.router.port or _free_port(settings.router.host)
    settings = dataclasses.replace(
        settings,
        router=dataclasses.replace(settings.router, port=port, drain_s=drain_s),
        worker=dataclasses.replace(settings.worker, drain_s=drain_s),
    )
    return reachable(settings) if settings.ray.address else settings


def _free_port(host: str) -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return int(probe.getsockname()[1])


def _name(entry: Entry) -> str:
    return "router" if entry.part is Part.ROUTER else f"{entry.part.value} {entry.member_id}"


def _where(entry: Entry) -> str:
    return f"pid {entry.pid} on node {entry.node[:_NODE_DIGITS]}"


def _by_id(members: Membership) -> dict[str, Entry]:
    return {entry.member_id: entry for entry in members.entries}
