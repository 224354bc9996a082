"""The Kubernetes manifests: they render, every object fits its schema, and what they configure is what we read."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

import deploy.app
from deploy.app import router_app, worker_app
from deploy.ray_config import labels_of
from deploy.settings import Settings, load_settings
from segue.batch.role import Role
from tests.deploy.manifests import OVERLAYS, SCHEMA_VERSION, PodGroup, one, pod_groups, rendered
from tests.repo.sources import ROOT

pytestmark = pytest.mark.parametrize("overlay", OVERLAYS)


def settings_of(overlay: str, folder: Path) -> Settings:
    """What our own loader makes of the ConfigMap."""
    file = folder / "segue.toml"
    file.write_text(one(overlay, "ConfigMap")["data"]["segue.toml"])
    return load_settings(file, [])


def groups_of(overlay: str) -> dict[str, PodGroup]:
    return {group.name: group for group in pod_groups(one(overlay, "RayService"))}


def serve_config(overlay: str) -> dict[str, Any]:
    config = yaml.safe_load(one(overlay, "RayService")["spec"]["serveConfigV2"])
    assert isinstance(config, dict)
    return config


def test_every_object_fits_the_schema_of_its_kind(overlay: str) -> None:
    kinds = {manifest["kind"] for manifest in rendered(overlay)}
    assert kinds == {"ConfigMap", "PodDisruptionBudget", "RayService", "Service"}
    for manifest in rendered(overlay):
        if manifest["kind"] != "RayService":
            kubernetes_validate.validate(manifest, SCHEMA_VERSION, strict=True)


def test_every_pod_of_the_ray_cluster_fits_the_schema_of_pods(overlay: str) -> None:
    for group in groups_of(overlay).values():
        kubernetes_validate.validate(group.pod, SCHEMA_VERSION, strict=True)


def test_serve_takes_the_applications_and_they_are_built_by_our_builders(overlay: str, tmp_path: Path) -> None:
    config = ServeDeploySchema.model_validate(serve_config(overlay))
    assert config.proxy_location == "Disabled"
    for application in config.applications:
        assert application.route_prefix is None
        module, _, builder = application.import_path.partition(":")
        assert module == deploy.app.__name__
        settings_of(overlay, tmp_path)
        built = getattr(deploy.app, builder)({**application.args, "config": str(tmp_path / "segue.toml")})
        assert type(built) is type(router_app(settings_of(overlay, tmp_path), "WARNING"))
    roles = {application.args["role"] for application in config.applications if "role" in application.args}
    settings = settings_of(overlay, tmp_path)
    assert roles == {role.value for role in settings.roles}


def test_the_settings_are_where_the_applications_look_for_them(overlay: str) -> None:
    name = one(overlay, "ConfigMap")["metadata"]["name"]
    paths = {application["args"]["config"] for application in serve_config(overlay)["applications"]}
    (path,) = paths
    for group in groups_of(overlay).values():
        (volume,) = [volume for volume in group.spec["volumes"] if volume.get("configMap", {}).get("name") == name]
        (mount,) = [mount for mount in group.container["volumeMounts"] if mount["name"] == volume["name"]]
        assert f"{mount['mountPath']}/segue.toml" == path


def test_clients_and_probes_reach_the_port_that_the_router_binds(overlay: str, tmp_path: Path) -> None:
    settings = settings_of(overlay, tmp_path)
    router = groups_of(overlay)["router"]
    (port,) = router.container["ports"]
    assert (port["containerPort"], settings.router.host) == (settings.router.port, "0.0.0.0")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert router.container[probe]["httpGet"]["port"] == port["name"]
    service = one(overlay, "Service")["spec"]
    assert [entry["targetPort"] for entry in service["ports"]] == [port["name"]]
    assert service["selector"].items() <= router.template["metadata"]["labels"].items()
    others = [group for name, group in groups_of(overlay).items() if name != "router"]
    assert not [
        group for group in others if service["selector"].items() <= group.template["metadata"]["labels"].items()
    ]


def test_ray_finds_a_node_for_every_replica(overlay: str, tmp_path: Path) -> None:
    settings = settings_of(overlay, tmp_path)
    groups = groups_of(overlay)
    wanted = {
        "router": (settings.ray.router_node_labels, settings.ray.router_cpus, 0.0),
        "worker": (settings.both.node_labels, settings.both.cpus, settings.both.gpus),
    }
    for name, (labels, cpus, gpus) in wanted.items():
        assert labels_of(labels)
        assert labels_of(labels).items() <= groups[name].labels.items()
        limits = groups[name].container["resources"]["limits"]
        assert cpus <= float(limits["cpu"])
        assert gpus <= float(limits.get("nvidia.com/gpu", 0))


def test_nobody_runs_as_root_and_everybody_has_shared_memory(overlay: str) -> None:
    for group in groups_of(overlay).values():
        pod, container = group.spec["securityContext"], group.container["securityContext"]
        assert pod["runAsNonRoot"]
        assert pod["runAsUser"] > 0
        assert not container["allowPrivilegeEscalation"]
        assert container["capabilities"]["drop"] == ["ALL"]
        (shm,) = [mount for mount in group.container["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
        (volume,) = [volume for volume in group.spec["volumes"] if volume["name"] == shm["name"]]
        assert volume["emptyDir"]["medium"] == "Memory"


def test_a_pod_is_given_longer_to_end_than_its_requests(overlay: str, tmp_path: Path) -> None:
    settings = settings_of(overlay, tmp_path)
    groups = groups_of(overlay)
    for name, app in (
        ("router", router_app(settings, "WARNING")),
        ("worker", worker_app(settings, Role.BOTH, "WARNING")),
    ):
        budget_s = app._bound_deployment._deployment_config.graceful_shutdown_timeout_s
        hook = groups[name].container["lifecycle"]["preStop"]["exec"]["command"]
        within_s = float(hook[hook.index("--within") + 1])
        assert budget_s < within_s < groups[name].spec["terminationGracePeriodSeconds"]


def test_the_cluster_runs_the_ray_that_is_pinned(overlay: str) -> None:
    version = one(overlay, "RayService")["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"\nray=={version}\n" in (ROOT / "constraints.txt").read_text()
