"""What the workers behind a router say of retraction, once nothing runs any more."""

import asyncio

from benchmarks.refusal import Refused
from deploy.status import ask
from segue.errors import ServingError
from segue.wire import RetractionFigures
from segue.wire.channel import PLAIN


def of_workers(url: str) -> list[RetractionFigures]:
    """Those of every worker behind the router at `url`. Raises Refused for one that does not answer."""
    found = []
    for row in asyncio.run(ask(url, PLAIN)):
        if isinstance(row.status, ServingError):
            raise Refused(f"worker {row.address} says nothing of itself: {row.status.message}")
        found.append(row.status.retraction)
    return found


def retraction_figures(url: str) -> dict[str, object]:
    """Figures by name, summed over all workers.

    Raises Refused when nobody was retracted, somebody did not come back, or a resumed request was extended: then the
    run shows nothing.
    """
    workers = of_workers(url)
    names = {
        "retractions": sum(one.retractions for one in workers),
        "retracted_requests": sum(one.requests for one in workers),
        "resumed": sum(one.resumed for one in workers),
        "recomputed": sum(one.recomputed for one in workers),
        "mismatched": sum(one.mismatched for one in workers),
        "resumed_extend_tokens": sum(one.resumed_extend_tokens for one in workers),
        "recomputed_tokens": sum(one.recomputed_tokens for one in workers),
    }
    if not names["retractions"]:
        raise Refused("nobody was taken off the device")
    if any(one.waiting for one in workers) or any(pool.held for one in workers for pool in one.host):
        raise Refused("somebody is still off the device, or host memory is held for nobody")
    return dict(names)
