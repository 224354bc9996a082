"""The manifests as a cluster would get them: rendered by kubectl, one object each, and what a RayService is made of.

No package carries the schema of RayService, so its shape is written down here: the fields that we use, and no others.
Its pod templates are ordinary pods, and are held against the schema of those.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).parents[2] / "deploy" / "k8s"
OVERLAYS = ("base", "gpu")
SCHEMA_VERSION = "1.37.0"

Manifest = dict[str, Any]


@cache
def rendered(overlay: str) -> tuple[Manifest, ...]:
    """Every object of `kubectl kustomize`."""
    kubectl = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or "kubectl"
    made = subprocess.run(
        [kubectl, "kustomize", str(K8S / overlay)], capture_output=True, text=True, check=True, timeout=60
    )
    return tuple(yaml.safe_load_all(made.stdout))


def one(overlay: str, kind: str) -> Manifest:
    """The only object of a kind."""
    (found,) = [manifest for manifest in rendered(overlay) if manifest["kind"] == kind]
    return found


def fields(value: object, required: dict[str, type], optional: dict[str, type], where: str) -> Manifest:
    """`value` as a mapping of exactly these fields. Asserts names and types."""
    assert isinstance(value, dict), f"{where} is no mapping"
    known = {**required, **optional}
    assert not value.keys() - known.keys(), f"{where} has unknown fields {sorted(value.keys() - known.keys())}"
    assert not required.keys() - value.keys(), f"{where} lacks {sorted(required.keys() - value.keys())}"
    for name, found in value.items():
        assert type(found) is known[name], f"{where}.{name} is {found!r}, expected a {known[name].__name__}"
    return value


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A head or worker group of a RayService: its name, its Ray labels and its pod template."""

    name: str
    labels: dict[str, str]
    template: Manifest

    @property
    def spec(self) -> Manifest:
        spec: Manifest = self.template["spec"]
        return spec

    @property
    def container(self) -> Manifest:
        (container,) = self.spec["containers"]
        assert isinstance(container, dict)
        return container

    @property
    def pod(self) -> Manifest:
        """The pod that the operator makes of the template."""
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": self.spec}


def pod_groups(service: Manifest) -> list[PodGroup]:
    """All groups of a RayService, whose shape is asserted on the way."""
    fields(service, {"apiVersion": str, "kind": str, "metadata": dict, "spec": dict}, {}, "RayService")
    assert service["apiVersion"] == "ray.io/v1"
    spec = fields(service["spec"], {"serveConfigV2": str, "rayClusterConfig": dict}, {}, "spec")
    cluster = fields(
        spec["rayClusterConfig"],
        {"rayVersion": str, "headGroupSpec": dict, "workerGroupSpecs": list},
        {"authOptions": dict, "enableInTreeAutoscaling": bool, "autoscalerOptions": dict},
        "rayClusterConfig",
    )
    fields(cluster["authOptions"], {"mode": str}, {}, "authOptions")
    fields(cluster["autoscalerOptions"], {"idleTimeoutSeconds": int}, {}, "autoscalerOptions")
    head = fields(
        cluster["headGroupSpec"], {"rayStartParams": dict, "template": dict}, {"labels": dict}, "headGroupSpec"
    )
    groups = [PodGroup("head", head.get("labels", {}), _template(head["template"], "head"))]
    for group in cluster["workerGroupSpecs"]:
        required = {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}
        fields(group, {**required, "rayStartParams": dict, "template": dict}, {"labels": dict}, "workerGroupSpecs")
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(type(value) is str for value in group["rayStartParams"].values())
        name = group["groupName"]
        groups.append(PodGroup(name, group.get("labels", {}), _template(group["template"], name)))
    return groups


def _template(template: object, where: str) -> Manifest:
    return fields(template, {"spec": dict}, {"metadata": dict}, f"{where}.template")
