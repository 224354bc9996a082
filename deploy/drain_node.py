"""`segue drain-node`: has Ray take the replicas away from one machine, and waits until they have ended.

Serve starts each replica elsewhere first, if it can, and ends the one here in time for its requests to finish. A pod
calls this before it is deleted: Ray's own processes end at once when they are told to, and all that runs on them too.
"""

import os
import time
from collections.abc import Callable

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2

from deploy.directory import Entry
from deploy.ray_cluster import RayCluster
from segue.errors import ServingError, WorkerUnavailable

_LOOK_S = 0.2


def drain_node(cluster: RayCluster, node: str, budget_s: float, lease_s: float, say: Callable[[str], None]) -> None:
    """Drains the node whose id begins with `node`, "" for the one that this process runs on.

    Raises WorkerUnavailable when Ray refuses, ServingError when somebody still runs there after `budget_s`.
    """
    deadline = time.time() + budget_s
    context = ray.get_runtime_context()
    entries = [
        entry for entry in cluster.members(lease_s).entries if entry.node.startswith(node or context.get_node_id())
    ]
    nodes = {entry.node for entry in entries} or {context.get_node_id()}
    if len(nodes) > 1:
        raise ServingError(f"'{node}' may mean any of {', '.join(sorted(nodes))}")
    accepted, why = GcsClient(address=context.gcs_address).drain_node(
        nodes.pop(),
        autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),  # type: ignore[attr-defined]
        "segue drain-node",
        int(deadline * 1000),
    )
    if not accepted:
        raise WorkerUnavailable(f"Ray does not drain the node: {why}")
    say(f"{len(entries)} process(es) of Segue are told to end")
    while left := [entry for entry in entries if _runs(entry)]:
        if time.time() > deadline:
            raise ServingError(f"still running: {', '.join(f'{one.member_id} (pid {one.pid})' for one in left)}")
        time.sleep(_LOOK_S)
    say("all have ended")


def _runs(entry: Entry) -> bool:
    try:
        os.kill(entry.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
