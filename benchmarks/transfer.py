"""How fast state moves between two processes: each transport against raw TCP and memcpy, all in one run."""

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from benchmarks.machine import describe_commit, describe_machine
from benchmarks.refusal import Refused
from benchmarks.transfer_ways import contiguous, measure_way, scattered
from kv_transfer.blocks import Blocks

NAME = "transfer"
SUMMARY = "GB/s of NIXL (cma, tcp) and gRPC between two processes, against raw TCP and memcpy in the same run"

WAYS = ("memcpy", "tcp", "nixl-cma", "nixl-tcp", "grpc")
_WAIT_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ways", default=",".join(WAYS), help="some of: %(default)s")
    parser.add_argument("--sizes-mib", default="1,64,512")
    parser.add_argument("--page-kib", type=int, default=128, help="a full page of the bundled model has 128 KiB")
    parser.add_argument("--rounds", type=int, default=5, help="measured after one that warms up; the median counts")
    parser.add_argument("--json-dir", type=Path, metavar="DIR", help="also one file per transport and size")


def run(args: argparse.Namespace) -> dict[str, object]:
    sizes = [int(size) for size in args.sizes_mib.split(",")]
    layouts: list[tuple[str, Blocks]] = []
    for size in sizes:
        layouts.append((f"contiguous {size}", contiguous(size << 20)))
        layouts.append((f"scattered {size}", scattered(size << 20, args.page_kib << 10, seed=size)))
    figures: dict[str, object] = {}
    for way in args.ways.split(","):
        if way not in WAYS:
            raise Refused(f"{way} is none of {', '.join(WAYS)}")
        rates = _measure(way, layouts, args.rounds)
        figures[way] = {
            f"{size}_mib": {
                "contiguous_gb_per_s": round(rates[f"contiguous {size}"], 3),
                "scattered_gb_per_s": round(rates[f"scattered {size}"], 3),
            }
            for size in sizes
        }
    if args.json_dir is not None:
        _write(args, figures)
    return figures


def _measure(way: str, layouts: Sequence[tuple[str, Blocks]], rounds: int) -> dict[str, float]:
    """In a process of its own: UCX reads which transports it may use once."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure_way, args=(way, layouts, rounds, theirs))
    process.start()
    try:
        if not ours.poll(_WAIT_S):
            raise Refused(f"{way} gave no answer within {_WAIT_S:g} s")
        answer = ours.recv()
    except EOFError:
        raise Refused(f"the process of {way} ended without an answer") from None
    finally:
        process.join(10)
        process.kill()
    if isinstance(answer, str):
        raise Refused(f"{way}: {answer}")
    return cast(dict[str, float], answer)


def _write(args: argparse.Namespace, figures: dict[str, object]) -> None:
    """One report per transport and size, in the form of all reports."""
    args.json_dir.mkdir(parents=True, exist_ok=True)
    machine, commit = describe_machine(), describe_commit()
    for way, sizes in figures.items():
        assert isinstance(sizes, dict)
        for size, rates in sizes.items():
            settings = {"way": way, "size": size, "page_kib": str(args.page_kib), "rounds": str(args.rounds)}
            report = {
                "benchmark": NAME,
                "figures": rates,
                "settings": settings,
                "machine": machine,
                "commit": commit,
            }
            (args.json_dir / f"transfer-{way}-{size}.json").write_text(json.dumps(report, indent=2) + "\n")
