"""The Ray cluster that a deployment runs on: started on this machine or joined, and left as it was found."""

import contextlib
import logging
from collections.abc import Sequence

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import RunTarget
from ray.serve.exceptions import RayServeException

from deploy.directory import Membership, Part
from deploy.directory_actor import NAMESPACE, ask_directory, end_directory
from segue.errors import ConfigError, ServingError, WorkerUnavailable

_ASK_S = 10.0
_CONFIG_ERRORS = ("ConfigError: ", "CheckpointError: ")


class RayCluster:
    """The connection of this process. `address` empty: Ray runs only as long as this process does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.log_folder = ""

    def connect(self) -> None:
        """Starts Ray, or joins it. Raises WorkerUnavailable when there is none to join."""
        # What replicas log stays in Ray's own files; what a person should see is said by whoever watches them.
        try:
            context = ray.init(
                address=self.address or "local",
                namespace=NAMESPACE,
                include_dashboard=None if self.address else False,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except (ConnectionError, RuntimeError, RayError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise WorkerUnavailable(f"Ray does not run {where}: {error}") from error
        # A cluster reached through a Ray client keeps its files elsewhere and does not say where.
        self.log_folder = getattr(context, "address_info", {}).get("session_dir", "")
        logging.getLogger("ray.serve").setLevel(logging.ERROR)

    def run(self, applications: Sequence[RunTarget]) -> None:
        """Submits applications; replaces those of the same name. Does not wait for them to run."""
        serve.start(proxy_location="Disabled")
        serve.run_many(applications, wait_for_applications_running=False)

    def members(self, lease_s: float) -> Membership:
        """Everybody who serves. Raises WorkerUnavailable while the directory is away."""
        return ask_directory(lease_s, _ASK_S)

    def require_startable(self) -> None:
        """Raises ConfigError or WorkerUnavailable with the reason when an application was given up."""
        for name, application in serve.status().applications.items():
            if application.status == "DEPLOY_FAILED":
                reasons = [application.message, *(one.message for one in application.deployments.values())]
                raise _given_up(name, "\n".join(reasons))

    def end_applications(self) -> None:
        """Ends routers, which let their requests finish, and then the workers, which have none left."""
        with contextlib.suppress(RayError, RayServeException):
            there = serve.status().applications
            for name in [application_name(part) for part in (Part.ROUTER, Part.DECODE, Part.PREFILL, Part.BOTH)]:
                if name in there:
                    serve.delete(name)

    def end(self) -> None:
        """Ends everything of ours, and Ray too where it was started here."""
        if self.address:
            self.end_applications()
            with contextlib.suppress(RayError):
                end_directory()
        self.leave()

    def leave(self) -> None:
        """Ends the connection, and Ray where it was started here."""
        ray.shutdown()


def application_name(part: Part) -> str:
    """Not the part alone: other people's applications may run on the same cluster."""
    return f"segue-{part.value}"


def _given_up(name: str, message: str) -> ServingError:
    """What kept replicas from starting, without the way it took through Ray."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for line in reversed(lines):
        for kind in _CONFIG_ERRORS:
            _, found, reason = line.partition(kind)
            if found:
                return ConfigError(f"{name} cannot start: {reason}")
    return WorkerUnavailable(f"{name} cannot be kept up: {lines[-1] if lines else 'no reason was given'}")
