"""`segue router`: one router process in front of given workers; turns settings into the router's own terms."""

from collections.abc import Sequence

from deploy.exits import EXIT_OK
from deploy.reports import Ready, Reporter
from deploy.settings import Settings
from router.server import serve_forever
from router.text.tokenizer import Tokenizer


def run(settings: Settings, workers: Sequence[str], prefills: Sequence[str], report: Reporter) -> int:
    """Serves until told to end. Raises what kept the router from starting."""
    tokenizer = Tokenizer.from_folder(settings.engine.model)
    serve_forever(
        settings.router,
        tokenizer,
        workers,
        prefills,
        settings.tls,
        lambda host, port: report(Ready(http_url(host, port))),
    )
    return EXIT_OK


def http_url(host: str, port: int) -> str:
    """Where a router is found; IPv6 addresses in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
