"""The Ray Serve applications of a cluster, one per role: placement, health, restarts and scaling; no requests.

Serve is used for the life of processes only. Its proxies are off and no handle is ever called: routers and workers bind
ports of their own and find each other through the directory. A RayService names `build_workers` and `build_router`.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from deploy.ray_config import RoleConfig, labels_of
from deploy.router_replica import RouterReplica
from deploy.scaling import pressure_policy
from deploy.settings import Settings, load_settings
from deploy.worker_replica import BuildEngine, WorkerReplica, build_engine
from segue.batch.role import Role
from segue.errors import ConfigError

_STARTS_MAX = 3
_SHUTDOWN_SLACK_S = 5.0
"""Beyond the drain budget, what a replica gets to close its port before it is killed."""


def worker_app(settings: Settings, role: Role, log_level: str, build: BuildEngine = build_engine) -> Application:
    """Workers in one role, whose engines `build` makes."""
    replicas = settings.replicas(role)
    deployment = serve.deployment(
        name=role.value.capitalize(),
        num_replicas=None if replicas.scales else replicas.replicas,
        autoscaling_config=_autoscaling(settings, replicas) if replicas.scales else None,
        ray_actor_options=_placement(replicas.cpus, replicas.gpus, replicas.node_labels),
        health_check_period_s=settings.ray.health_s,
        health_check_timeout_s=settings.ray.health_timeout_s,
        graceful_shutdown_timeout_s=settings.worker.drain_s + _SHUTDOWN_SLACK_S,
        graceful_shutdown_wait_loop_s=0.1,
        max_constructor_retry_count=_STARTS_MAX,
    )(WorkerReplica)
    return deployment.bind(settings, role, log_level, build)


def router_app(settings: Settings, log_level: str) -> Application:
    """The routers; two of them never share a node, because all listen on one port."""
    deployment = serve.deployment(
        name="Router",
        num_replicas=settings.ray.routers,
        max_replicas_per_node=1,
        ray_actor_options=_placement(settings.ray.router_cpus, 0.0, settings.ray.router_node_labels),
        health_check_period_s=settings.ray.health_s,
        health_check_timeout_s=settings.ray.health_timeout_s,
        graceful_shutdown_timeout_s=settings.router.drain_s + _SHUTDOWN_SLACK_S,
        graceful_shutdown_wait_loop_s=0.1,
        max_constructor_retry_count=_STARTS_MAX,
    )(RouterReplica)
    return deployment.bind(settings, log_level)


def build_workers(args: Mapping[str, object]) -> Application:
    """The workers of role `args["role"]`, by the configuration file `args["config"]`."""
    settings = reachable(load_settings(_config_of(args), []))
    try:
        role = Role(str(args.get("role")))
    except ValueError as error:
        raise ConfigError(f"args.role is {args.get('role')!r}, it must be one of {', '.join(Role)}") from error
    if role not in settings.roles:
        raise ConfigError(
            f"args.role is {role}, and by {args['config']} that role has no replicas; set {role}.replicas there, "
            f"or name another role ({', '.join(settings.roles)})",
            param=f"{role}.replicas",
        )
    return worker_app(settings, role, _log_level())


def build_router(args: Mapping[str, object]) -> Application:
    """The routers, by the configuration file `args["config"]`."""
    return router_app(reachable(load_settings(_config_of(args), [])), _log_level())


def reachable(settings: Settings) -> Settings:
    """Settings for several machines: workers that would listen to their own machine only take their node's address."""
    if settings.worker.host in ("127.0.0.1", "localhost", "::1"):
        return dataclasses.replace(settings, worker=dataclasses.replace(settings.worker, host=""))
    return settings


def _autoscaling(settings: Settings, replicas: RoleConfig) -> AutoscalingConfig:
    return AutoscalingConfig(
        min_replicas=replicas.replicas,
        max_replicas=replicas.replicas_max,
        target_ongoing_requests=replicas.target_requests,
        upscale_delay_s=settings.ray.upscale_s,
        downscale_delay_s=settings.ray.downscale_s,
        metrics_interval_s=1.0,
        look_back_period_s=2.0,
        policy=AutoscalingPolicy(policy_function=pressure_policy),
    )


def _placement(cpus: float, gpus: float, node_labels: str) -> dict[str, object]:
    options: dict[str, object] = {"num_cpus": cpus, "num_gpus": gpus}
    return {**options, "label_selector": labels_of(node_labels)} if node_labels else options


def _config_of(args: Mapping[str, object]) -> Path:
    unknown = set(args) - {"config", "role"}
    if unknown:
        raise ConfigError(f"args has unknown keys {', '.join(sorted(unknown))}; known are config and role")
    return Path(str(args["config"]))


def _log_level() -> str:
    # An entry point: Serve calls the builders in a process of their own.
    return os.environ.get("SEGUE_LOG", "WARNING")
