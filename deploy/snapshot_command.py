"""`segue snapshot ...`: its flags, and what each of its commands prints; imports a client only when one is run."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.exits import EXIT_OK

if TYPE_CHECKING:
    from deploy.snapshots import SnapshotClient

# A worker writes, reads or continues for so long at most before the command gives up on it.
_TIMEOUT_S = 600.0
_CONNECT_S = 5.0


def add_snapshot_commands(snapshot: argparse.ArgumentParser) -> None:
    """`export`, `list`, `inspect`, `verify`, `resume` and `delete`."""
    commands = snapshot.add_subparsers(title="commands", required=True, metavar="COMMAND")
    export = _command(commands.add_parser("export", help="take a running request out, to a snapshot"), _export)
    export.add_argument("id", metavar="REQUEST_ID", help="the x-request-id of its answer")
    export.add_argument("--copy", action="store_true", help="leave it running")
    _command(commands.add_parser("list", help="all snapshots, the oldest first"), _list)
    _of_one(_command(commands.add_parser("inspect", help="what a snapshot says of itself"), _inspect))
    _of_one(_command(commands.add_parser("verify", help="read all of it and check every digest"), _verify))
    resume = _command(commands.add_parser("resume", help="go on with its request, and print the rest"), _resume)
    _of_one(resume)
    resume.add_argument("--stream", action="store_true", help="print it as it comes")
    _of_one(_command(commands.add_parser("delete", help="remove it"), _delete))


def _command(
    parser: argparse.ArgumentParser, run: Callable[["SnapshotClient", argparse.Namespace], None]
) -> argparse.ArgumentParser:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="holds router.admin_key (default: the environment's SEGUE_ADMIN_KEY)",
    )
    parser.set_defaults(run=lambda args: _with_client(args, run))
    return parser


def _of_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the snapshot's id")


def _with_client(args: argparse.Namespace, run: Callable[["SnapshotClient", argparse.Namespace], None]) -> int:
    import httpx

    from deploy.snapshots import SnapshotClient, admin_key

    headers = {"authorization": f"Bearer {admin_key(args.admin_key_file, os.environ)}"}
    timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S)
    with httpx.Client(base_url=args.url, headers=headers, timeout=timeout) as http:
        run(SnapshotClient(http), args)
    return EXIT_OK


def _export(client: "SnapshotClient", args: argparse.Namespace) -> None:
    from deploy.snapshots import taken

    print(taken(client.copy(args.id) if args.copy else client.export(args.id)))


def _list(client: "SnapshotClient", args: argparse.Namespace) -> None:
    from deploy.snapshots import table

    print(table(client.list()))


def _inspect(client: "SnapshotClient", args: argparse.Namespace) -> None:
    from deploy.snapshots import sheet

    print(sheet(client.inspect(args.id)))


def _verify(client: "SnapshotClient", args: argparse.Namespace) -> None:
    client.verify(args.id)
    print(f"{args.id}: every digest is right")


def _resume(client: "SnapshotClient", args: argparse.Namespace) -> None:
    if args.stream:
        for piece in client.resume_streaming(args.id):
            print(piece, end="", flush=True)
        print()
    else:
        print(client.resume(args.id))


def _delete(client: "SnapshotClient", args: argparse.Namespace) -> None:
    client.delete(args.id)
    print(f"{args.id} is deleted")
