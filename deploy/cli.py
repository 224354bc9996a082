"""The command `segue`: flags to settings, errors to exit codes; every command imports what it needs, and no more."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.commands import WORKER_COMMANDS
from deploy.exits import EXIT_CONFIG, EXIT_FAILED, EXIT_OK
from deploy.snapshot_command import add_snapshot_commands
from segue.batch.role import Role
from segue.errors import ConfigError, ServingError
from segue.tether import tie_to_parent
from segue.threads import let_waiting_threads_sleep

_FLAGS = {
    "model": ("engine.model", "model folder (default: the bundled model)"),
    "name": ("engine.name", "name that clients use for the model"),
    "dtype": ("engine.dtype", "float32 or bfloat16"),
    "kv-dtype": ("engine.kv_dtype", "fp8: keys and values in 8 bits (default: as computed)"),
    "replay-length": ("engine.replay_length", "write recurrent layers' matrix states every 8, 16 or 32 decode steps"),
    "device": ("engine.device", "cpu, cuda, or the device of each rank: cuda:0,cuda:1"),
    "tp": ("engine.tp", "tensor-parallel ranks that share each worker"),
    "prefill-tp": ("prefill.tp", "ranks of each prefill worker, where that differs"),
    "decode-tp": ("decode.tp", "ranks of each decode worker, where that differs"),
    "threads": ("engine.threads", "threads of one worker"),
    "deterministic": ("engine.deterministic", "true: results do not depend on the batch"),
    "test-retract-interval": (
        "retraction.test_interval",
        "for tests: take a request off the device on every so many decode steps, if two run (default: 3)",
    ),
    "host": ("router.host", "address of the HTTP server"),
    "port": ("router.port", "port of the HTTP server"),
    "prefill": ("prefill.replicas", "workers that compute prompts (default: 1, and 1 that decodes)"),
    "decode": ("decode.replicas", "workers that decode what those computed"),
    "both": ("both.replicas", "workers that compute prompts and decode them"),
    "ray-address": ("ray.address", "a Ray cluster to use instead of starting Ray here"),
}
_OF_WORKERS = [
    "model",
    "name",
    "dtype",
    "kv-dtype",
    "replay-length",
    "device",
    "tp",
    "threads",
    "deterministic",
    "test-retract-interval",
]
# What a flag means that stands alone.
_ALONE = {"test-retract-interval": "3"}
_ROUTED = {
    Role.BOTH: "a worker in role both",
    Role.DECODE: "a decode worker",
    Role.PREFILL: "a prefill worker, for the decode workers to ask",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = _parser().parse_args(argv)
    if getattr(args, "tied_to", None) is not None:
        tie_to_parent(args.tied_to)
    logging.basicConfig(level=os.environ.get("SEGUE_LOG", "WARNING"), format="%(levelname)s %(name)s: %(message)s")
    try:
        return int(args.run(args))
    except ConfigError as error:
        print(f"segue: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except ServingError as error:
        print(f"segue: error: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        # Whoever reads what we print has had enough; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_OK


def _serve(args: argparse.Namespace) -> int:
    from deploy.console import Console
    from deploy.settings import load_settings

    settings = load_settings(args.config, _assignments(args))
    console = Console(sys.stdout)
    if args.ray or settings.ray.address:
        from deploy.ray_serve import serve_on_ray

        return serve_on_ray(settings, console, os.environ.get("SEGUE_LOG", "WARNING"))
    from deploy.record import record_folder, recorded
    from deploy.serve import serve

    with recorded(record_folder(), settings.router.port):
        return asyncio.run(serve(settings, _forwarded(args), console))


def _status(args: argparse.Namespace) -> int:
    from deploy.settings import load_settings
    from deploy.status import ask, table

    print(table(asyncio.run(ask(args.url, load_settings(args.config, args.set).tls))))
    return EXIT_OK


def _stop(args: argparse.Namespace) -> int:
    from deploy.record import record_folder
    from deploy.stop import stop_cluster, stop_here

    if args.ray_address:
        stop_cluster(args.ray_address, print)
    else:
        stop_here(record_folder(), args.port, args.wait, print)
    return EXIT_OK


def _worker(args: argparse.Namespace) -> int:
    let_waiting_threads_sleep()
    from deploy.reports import reporter
    from deploy.settings import load_settings
    from deploy.worker import run

    run(load_settings(args.config, _assignments(args)), reporter(supervised=args.tied_to is not None))


def _router(args: argparse.Namespace) -> int:
    from deploy.reports import reporter
    from deploy.router import run
    from deploy.settings import load_settings

    settings = load_settings(args.config, _assignments(args))
    workers = args.both_addresses + args.decode_addresses
    if not workers:
        raise ConfigError("a router needs at least one --worker or --decode address", param="worker")
    if args.decode_addresses and not args.prefill_addresses:
        raise ConfigError("decode workers need a prefill worker: name at least one with --prefill", param="prefill")
    if args.prefill_addresses and not args.decode_addresses:
        raise ConfigError("prefill workers need a decode worker: name at least one with --decode", param="decode")
    return run(settings, workers, args.prefill_addresses, reporter(supervised=args.tied_to is not None))


def _chat(args: argparse.Namespace) -> int:
    import httpx

    from deploy.chat import ChatClient, Conversation, chat

    headers = {"authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    with httpx.Client(base_url=args.url, headers=headers, timeout=httpx.Timeout(600, connect=5)) as http:
        client = ChatClient(http)
        conversation = Conversation(
            model=args.model or client.first_model(),
            system=args.system,
            temperature=args.temperature,
            max_tokens=args.max_tokens,
        )
        chat(client, conversation, sys.stdin, sys.stdout)
    return EXIT_OK


def _drain_node(args: argparse.Namespace) -> int:
    from deploy.drain_node import drain_node
    from deploy.ray_cluster import RayCluster
    from deploy.settings import load_settings

    settings = load_settings(args.config, args.set)
    cluster = RayCluster(args.ray_address)
    cluster.connect()
    try:
        drain_node(cluster, args.node, args.within, settings.ray.lease_s, print)
    finally:
        cluster.leave()
    return EXIT_OK


def _assignments(args: argparse.Namespace) -> list[str]:
    """`--set` in order, then the flags that are short for one."""
    named = {target: getattr(args, flag.replace("-", "_"), None) for flag, (target, _) in _FLAGS.items()}
    role = []
    if hasattr(args, "role"):
        role = [f"engine.role={args.role}"]
        # What a file says of the role would be stronger than what it says of all engines.
        named[f"{args.role}.tp"] = named.pop("engine.tp")
    return [*args.set, *(f"{target}={value}" for target, value in named.items() if value is not None), *role]


def _forwarded(args: argparse.Namespace) -> list[str]:
    """The same settings as flags of a child."""
    config = ["--config", str(args.config)] if args.config else []
    return [*config, *(part for assignment in _assignments(args) for part in ("--set", assignment))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="segue", description="Serves hybrid language models.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start workers and a router, and keep them up")
    _add_settings(serve, list(_FLAGS))
    serve.add_argument(
        "--ray", action=argparse.BooleanOptionalAction, default=True, help="keep them up by Ray, or as children"
    )
    serve.set_defaults(run=_serve)

    status = commands.add_parser("status", help="the workers of a router: load and pools")
    _add_settings(status, [])
    status.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    status.set_defaults(run=_status)

    stop = commands.add_parser("stop", help="end a serve on this machine, or what runs on a Ray cluster")
    stop.add_argument("--port", type=int, help="which serve, when there are several")
    stop.add_argument("--wait", type=float, default=120.0, metavar="SECONDS", help="default: %(default)s")
    stop.add_argument("--ray-address", default="", metavar="ADDRESS", help="end what runs on this cluster instead")
    stop.set_defaults(run=_stop)

    drain = commands.add_parser("drain-node", help="have Ray take the replicas away from a machine, and wait for that")
    _add_settings(drain, [])
    drain.add_argument("--node", default="", metavar="ID", help="how its id begins (default: this machine)")
    drain.add_argument("--within", type=float, default=55.0, metavar="SECONDS", help="default: %(default)s")
    drain.add_argument("--ray-address", default="auto", metavar="ADDRESS", help="default: %(default)s")
    drain.set_defaults(run=_drain_node)

    for role, command in WORKER_COMMANDS.items():
        worker = commands.add_parser(command, help=f"one worker in role {role} by hand")
        _add_settings(worker, _OF_WORKERS)
        worker.set_defaults(run=_worker, role=role)

    router = commands.add_parser("router", help="one router by hand")
    _add_settings(router, ["model", "name", "host", "port"])
    for role, text in _ROUTED.items():
        # A destination of its own: `--prefill` and `--decode` of serve are counts.
        router.add_argument(
            f"--{WORKER_COMMANDS[role]}",
            dest=f"{role}_addresses",
            action="append",
            default=[],
            metavar="HOST:PORT",
            help=f"{text} (repeatable)",
        )
    router.set_defaults(run=_router)

    snapshot = commands.add_parser("snapshot", help="snapshots of running requests: take, look at, resume, delete")
    add_snapshot_commands(snapshot)

    chat = commands.add_parser("chat", help="talk to a server in the terminal")
    chat.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    chat.add_argument("--model", default="", help="default: the first that is served")
    chat.add_argument("--system", default="", help="a system message")
    chat.add_argument("--temperature", type=float)
    chat.add_argument("--max-tokens", type=int)
    chat.add_argument("--api-key", default="")
    chat.set_defaults(run=_chat)
    return parser


def _add_settings(parser: argparse.ArgumentParser, flags: Sequence[str]) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; deploy/config/default.toml has it all")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting (repeatable)"
    )
    parser.add_argument("--tied-to", type=int, metavar="PID", help=argparse.SUPPRESS)
    for flag in flags:
        target, text = _FLAGS[flag]
        text = f"{text}; same as --set {target}=VALUE"
        if flag in _ALONE:
            parser.add_argument(f"--{flag}", metavar="VALUE", nargs="?", const=_ALONE[flag], help=text)
        else:
            parser.add_argument(f"--{flag}", metavar="VALUE", help=text)


if __name__ == "__main__":
    sys.exit(main())
