"""A prefill and a decode worker on one GPU: state written from one's device memory into the other's by NIXL.

Without router and Ray, so that it runs where only the engine's own dependencies are.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.direct import ask_in_turn, ask_together, status_of
from benchmarks.refusal import Refused
from benchmarks.separated import started
from benchmarks.state_writes import measure_writes
from segue.wire import Transfers

NAME = "cuda_handoff"
SUMMARY = "handoffs on one GPU by NIXL: digests equal, answers equal to the CPU's, seconds and GB/s of a transfer"
BUNDLED_MODEL = Path(__file__).parent.parent / "segue" / "zoo" / "model"
# Enough for every answer of the bundled model that ends at all.
OUTPUT_TOKENS = 320


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="model folder (default: the bundled one)")
    parser.add_argument("--device", default="cuda", help="of both workers")
    parser.add_argument("--problems", type=int, default=20, help="requests for each number of shots")
    parser.add_argument("--shots", type=int, nargs="+", default=[0, 8], help="worked examples before each problem")
    parser.add_argument("--seed", type=int, default=0, help="which evaluation set")
    parser.add_argument("--output", type=int, default=OUTPUT_TOKENS, help="tokens of each answer at most")
    parser.add_argument("--long", type=int, default=16_384, help="tokens of a prompt of which only the write is timed")
    parser.add_argument("--threads", type=int, default=0, help="threads of each worker (0: as torch likes)")
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="the prompts as token ids; made and written there when it is missing, to be taken to another machine",
    )


def run(args: argparse.Namespace) -> dict[str, object]:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise Refused("torch sees no CUDA device here")
    model = args.model or BUNDLED_MODEL
    prompts = _prompts(model, args)
    everything = [prompt for group in prompts for prompt in group]
    settings = [
        f"engine.model={model}",
        f"engine.threads={args.threads}",
        "engine.max_running=64",
        "worker.silence_s=600",
        "transfer.transports=nixl",
        "transfer.verify=true",
        # The first use of a GPU takes seconds.
        "transfer.connect_s=60",
        "transfer.silence_s=30",
    ]
    figures: dict[str, object] = {
        "device": _device_name(args.device),
        "requests": len(everything),
        "prompt_tokens": sum(map(len, everything)),
    }
    with started(("-m", "deploy.cli", "worker"), settings) as (worker,):
        wanted = asyncio.run(ask_together(worker, everything, args.output))
    device = [*settings, f"engine.device={args.device}"]
    with (
        started(("-m", "deploy.cli", "prefill"), device) as (prefill,),
        started(("-m", "deploy.cli", "decode"), device) as (decode,),
    ):
        together = asyncio.run(ask_together(decode, everything, args.output, prefill=prefill))
        before = asyncio.run(status_of(decode)).transfers
        in_turn: dict[str, object] = {}
        for shots, group in zip(args.shots, prompts, strict=True):
            in_turn[f"{shots}_shot"], before = asyncio.run(_in_turn(decode, prefill, group, before))
        status = asyncio.run(status_of(decode))
    differing = sum(ours != theirs for ours, theirs in zip(together, wanted, strict=True))
    if differing:
        raise Refused(f"{differing} of {len(wanted)} answers are not those of one worker on the CPU")
    # Each was verified on arrival, or its request would have ended with an error; none was computed at the receiver.
    if status.transfers.count != 2 * len(everything) or status.prefill_tokens:
        raise Refused(f"{status.transfers.count} handoffs arrived, {2 * len(everything)} were asked for")
    figures |= {
        "output_tokens": sum(map(len, together)),
        "differing_answers": differing,
        "digests_equal": status.transfers.count,
        "bytes": status.transfers.bytes,
        "handoffs_in_turn": in_turn,
    }
    lengths = [sorted(map(len, group))[len(group) // 2] for group in prompts]
    figures["writes"] = measure_writes(model, torch.device(args.device), [*lengths, args.long])
    return figures


async def _in_turn(
    decode: str, prefill: str, prompts: Sequence[Sequence[int]], before: Transfers
) -> tuple[dict[str, object], Transfers]:
    """One request after another: mean seconds from the promise of room to the verified state, computing included."""
    await ask_in_turn(decode, prompts, 2, prefill=prefill)
    after = (await status_of(decode)).transfers
    count = after.count - before.count
    if not count:
        raise Refused("no state was handed over")
    return {
        "handoffs": count,
        "seconds_each": round((after.latency_s - before.latency_s) / count, 6),
        "bytes_each": (after.bytes - before.bytes) // count,
    }, after


def _prompts(model: Path, args: argparse.Namespace) -> list[list[list[int]]]:
    """The prompts of each number of shots."""
    if args.prompts is not None and args.prompts.exists():
        found: list[list[list[int]]] = json.loads(args.prompts.read_text())
        if [len(group) for group in found] != [args.problems] * len(args.shots):
            raise Refused(f"{args.prompts} holds other prompts than {args.problems} each with {args.shots} shots")
        return found
    # Here, because it needs reasoning-gym, which a machine that was given the prompts may lack.
    from benchmarks.prompts import problem_prompts

    made = [problem_prompts(model, args.seed, args.problems, shots) for shots in args.shots]
    if args.prompts is not None:
        args.prompts.write_text(json.dumps(made))
    return made


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device
