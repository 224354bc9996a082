"""A worker process whose model is a script: `python -m tests.cluster.scripted_worker {paced|breaking}`."""

import asyncio
import sys
import threading

from decode_service.host import Host
from kv_transfer.hosting.config import WorkerConfig
from kv_transfer.hosting.process import end_process, run_host
from tests.decode_service.engines import ScriptedRunner, scripted

STEP_S = 0.01


def main(kind: str) -> None:
    never = threading.Event()

    def paced() -> None:
        never.wait(STEP_S)

    def breaking() -> None:
        paced()
        assert runner.steps < 5, "page 7 has two owners"

    runner = ScriptedRunner({"paced": paced, "breaking": breaking}[kind])
    config = WorkerConfig(drain_s=20.0)
    end_process(
        asyncio.run(
            run_host(lambda: Host(config), lambda: scripted(runner), lambda address: print(address, flush=True))
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
