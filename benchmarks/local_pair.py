"""A prefill and a decode worker in one process (`python -m benchmarks.local_pair`): state passes from arena to arena.

Only for measurements: two engines share one interpreter here.
"""

import argparse
import asyncio
import signal
import sys
from functools import partial

from decode_service.host import Host
from decode_service.retraction.parts import retraction_parts
from deploy.reports import Ready, reporter
from deploy.settings import Settings, load_settings
from kv_transfer.hosting import process
from kv_transfer.hosting.loading import load
from kv_transfer.hosting.neighbours import Neighbours
from prefill_service.host import PrefillHost
from segue.batch.role import Role
from segue.tether import tie_to_parent


async def run(settings: Settings) -> None:
    """Serves until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    report = reporter(supervised=True)
    retraction = retraction_parts(settings.retraction, settings.engine.page_tokens)
    neighbours = Neighbours()
    hosts: dict[str, process.Host] = {
        "prefill": PrefillHost(settings.worker, settings.transfer, neighbours),
        "decode": Host(settings.worker, settings.transfer, neighbours),
    }
    for role, host in hosts.items():
        engine = settings.engine_of(Role(role))
        await host.start(partial(load, engine, lambda _: None, lambda _: None, retraction))
        report(Ready(host.address))
    await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--tied-to", type=int)
    args = parser.parse_args()
    if args.tied_to is not None:
        tie_to_parent(args.tied_to)
    asyncio.run(run(load_settings(None, args.set)))
    sys.stdout.flush()
    process.end_process(0)


if __name__ == "__main__":
    main()
