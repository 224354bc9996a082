"""How threads of a tensor product wait for each other; knows nothing of torch, which reads it when it is loaded."""

import os


def let_waiting_threads_sleep() -> None:
    """Makes them sleep instead of spinning, unless the environment says something.

    Beside a router on few cores, spinning costs several times the work itself (docs/adr/0007). Every entry point of a
    process that computes calls it before anything imports torch.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
