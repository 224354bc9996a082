"""A request that leaves a process which then ends, and goes on in a fresh one: what differs from an undisturbed run.

Every combination of the state's traits, one rank and two, greedy and sampled. Beside it, how fast a large state goes to
disk and comes back, digests on, by the rate of plain files of the same bytes in the same run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.random_model import FULL, LINEAR, SLIDING, write_checkpoint
from benchmarks.refusal import Refused
from benchmarks.snapshot_rates import rates

NAME = "snapshot"
SUMMARY = "a request exported by one process and restored in another, beside an undisturbed one; and the rates of both"

TRAITS = {
    "full": (FULL, FULL),
    "full+window": (SLIDING, FULL),
    "full+recurrent": (LINEAR, FULL),
    "full+window+recurrent": (LINEAR, SLIDING, FULL),
}
SAMPLED = 0.8
WINDOW = 63


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=int, default=128, help="tokens of the answer")
    parser.add_argument("--before", type=int, default=10, help="tokens of it before the export")
    parser.add_argument("--prompt", type=int, default=44, help="tokens of the prompt")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="tensor-parallel ranks of both processes")
    parser.add_argument("--mib", type=int, default=256, help="size of the state whose rates are measured")
    parser.add_argument("--rounds", type=int, default=5, help="how often; the median counts")


def run(args: argparse.Namespace) -> dict[str, object]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        for traits, layers in TRAITS.items():
            model = write_checkpoint(Path(place) / traits, window=WINDOW, max_len=1024, hidden=32, layers=layers)
            for ranks in args.ranks:
                for temperature in (0.0, SAMPLED):
                    row = _moved(model, Path(place), ranks, temperature, args)
                    rows.append({"traits": traits, "ranks": ranks, "temperature": temperature, **row})
        measured = rates(Path(place), args.mib << 20, args.rounds)
    worst = {name: max(row[name] for row in rows) for name in ("differing_tokens", "max_logprob_difference")}
    extends = max(row["extend_tokens"] for row in rows)
    return {**worst, "extend_tokens": extends, "decode_inputs": rows[0]["decode_inputs"], **measured, "rows": rows}


def _moved(model: Path, place: Path, ranks: int, temperature: float, args: argparse.Namespace) -> dict[str, Any]:
    """The differences that a move makes. Raises Refused where something is left or the arithmetic is wrong."""
    folder = Path(tempfile.mkdtemp(dir=place))
    common = [str(model), "--tp", str(ranks), "--temperature", str(temperature), "--output", str(args.output)]
    common += ["--prompt", str(args.prompt), "--folder", str(folder)]
    whole = _process(*common)
    source = _process(*common, "--export-at", str(args.before))
    target = _process(*common, "--restore", source["snapshot_id"], "--known", json.dumps(source["tokens"]))
    tokens = source["tokens"] + target["tokens"]
    scores = [list(zip(one["logprobs"], one["tops"], strict=True)) for one in (whole, source, target)]
    if source["payload_bytes"] != source["layout_bytes"]:
        raise Refused(f"{source['payload_bytes']} bytes of payload, {source['layout_bytes']} by the layout")
    if any(one["left_held"] for one in (whole, source, target)) or any(one.is_dir() for one in folder.iterdir()):
        raise Refused("something is left of a request that is over")
    if target["recomputed"] or target["decode_inputs"] != args.output - args.before:
        raise Refused(f"{target['decode_inputs']} decode inputs, {target['recomputed']} positions computed again")
    return {
        "differing_tokens": sum(a != b for a, b in zip(tokens, whole["tokens"], strict=True)),
        "max_logprob_difference": max(_difference(a, b) for a, b in zip(scores[1] + scores[2], scores[0], strict=True)),
        "extend_tokens": target["extend_inputs"],
        "decode_inputs": target["decode_inputs"],
        "payload_bytes": source["payload_bytes"],
    }


def _difference(found: tuple[float, list[list[float]]], wanted: tuple[float, list[list[float]]]) -> float:
    """Of the chosen token's logprob, and of all alternatives; infinite where these are others."""
    if [token for token, _ in found[1]] != [token for token, _ in wanted[1]]:
        return float("inf")
    pairs = [(found[0], wanted[0]), *((a[1], b[1]) for a, b in zip(found[1], wanted[1], strict=True))]
    return max(abs(a - b) for a, b in pairs)


def _process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.snapshot_process", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise Refused(f"a process ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
