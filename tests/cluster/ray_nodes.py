"""A Ray cluster of two nodes on this machine: `python -m tests.cluster.ray_nodes` says its address and waits."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def ray_nodes() -> Iterator[str]:
    """The address of a running cluster, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.ray_nodes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("cluster: "):
                yield line.removeprefix("cluster: ").strip()
                return
        raise AssertionError("the cluster did not start")
    finally:
        process.communicate(timeout=60)


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    print(f"cluster: {cluster.address}", flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
