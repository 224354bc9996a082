"""What a recurrent layer's decode step costs, plain and replayed, beside the time that its bytes take to move.

A layer's step for a batch is timed alone, over a full cycle of `length` steps in which every row's cursor is elsewhere.
On a CUDA device the cycle is one graph, over as many copies of the layer as the cache cannot hold, and the floor is the
bytes of a step at the rate of a large copy in the same run.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from benchmarks.recurrent_bed import GEOMETRIES, Advance, Bed, Decode, Geometry, check
from benchmarks.refusal import Refused
from segue.kernels.recurrence import batched
from segue.state.spec import DType

NAME = "replay"
SUMMARY = "kernel time of a recurrent layer's decode step, plain and replayed, and its share of what bytes allow"

# Copies of a layer together are larger than the cache of any device.
BED_BYTES = 1 << 30
BEDS_MAX = 64
COPY_BYTES = 2 << 30
PLAIN_STEPS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="where the state is")
    parser.add_argument("--length", type=int, default=16, help="steps from one write of a matrix to the next")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128, 256, 512], help="rows of a step")
    parser.add_argument(
        "--geometry", nargs="+", choices=GEOMETRIES, default=[*GEOMETRIES], help="layers of which models"
    )
    parser.add_argument("--record-dtype", choices=["float32", "bfloat16"], help="of records; bfloat16 on a CUDA device")
    parser.add_argument("--rounds", type=int, default=9, help="how often a cycle is measured; the median counts")


def run(args: argparse.Namespace) -> dict[str, object]:
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Refused("torch sees no CUDA device here")
    if args.length < 2:
        raise Refused("a cycle of one step replays nothing")
    decode, advance = implementation(device)
    record_dtype = DType(args.record_dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    rate = copy_rate(device, args.rounds)
    figures: dict[str, object] = {"copy_tb_s": round(rate / 1e12, 3), "record_dtype": record_dtype.value}
    for name in args.geometry:
        geometry = GEOMETRIES[name]
        plain_error, _ = check(geometry, 1, record_dtype, device, decode, advance)
        replay_error, written = check(geometry, args.length, record_dtype, device, decode, advance)
        found: dict[str, object] = {
            "plain_error": float(f"{plain_error:.2e}"),
            "replay_error": float(f"{replay_error:.2e}"),
            "matrices_written": round(written, 4),
        }
        for rows in args.batch:
            plain_s = step_s(geometry, rows, 1, record_dtype, device, decode, args.rounds)
            replay_s = step_s(geometry, rows, args.length, record_dtype, device, decode, args.rounds)
            found[str(rows)] = beside_floor(geometry, rows, args.length, record_dtype, rate, plain_s, replay_s)
        figures[name] = found
    return figures


def beside_floor(
    geometry: Geometry, rows: int, length: int, record_dtype: DType, rate: float, plain_s: float, replay_s: float
) -> dict[str, float]:
    """Both times, their floors, and how much of the speed-up that bytes allow is there."""
    plain_bytes, replay_bytes = (rows * geometry.step_bytes(steps, record_dtype) for steps in (1, length))
    allowed = plain_bytes / replay_bytes
    figures = {
        "plain_us": plain_s * 1e6,
        "plain_floor_us": plain_bytes / rate * 1e6,
        "plain_ratio": plain_s * rate / plain_bytes,
        "replay_us": replay_s * 1e6,
        "replay_floor_us": replay_bytes / rate * 1e6,
        "speed_up": plain_s / replay_s,
        "speed_up_allowed": allowed,
        "share": plain_s / replay_s / allowed,
    }
    return {name: round(figure, 3) for name, figure in figures.items()}


def implementation(device: torch.device) -> tuple[Decode, Advance]:
    """The step that an engine runs on such a device, and what moves its cursors on."""
    if device.type != "cuda":
        return batched.decode, batched.advance
    from segue.kernels.recurrence import launch  # here, because it needs Triton

    return launch.decode, launch.advance


def copy_rate(device: torch.device, rounds: int) -> float:
    """Bytes read and written per second by a large copy."""
    size = COPY_BYTES if device.type == "cuda" else COPY_BYTES // 16
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * size / _median_s(lambda: target.copy_(source), device, rounds)


def step_s(
    geometry: Geometry, rows: int, length: int, record_dtype: DType, device: torch.device, decode: Decode, rounds: int
) -> float:
    """Seconds of one layer's step, the mean over a cycle in which the rows' cursors are spread."""
    copies = 1
    if device.type == "cuda":
        copies = max(1, min(BEDS_MAX, -(-BED_BYTES // (rows * geometry.matrix_bytes))))
    beds = [Bed(geometry, rows, length, record_dtype, device, seed) for seed in range(copies)]
    steps = length if length > 1 or device.type != "cuda" else PLAIN_STEPS
    inputs = [bed.inputs() for bed in beds]
    cursors = [_spread(bed, step) for bed in beds[:1] for step in range(steps)]

    def cycle() -> None:
        for step in range(steps):
            for bed, given in zip(beds, inputs, strict=True):
                decode(geometry.shape.rule, given, bed.memory, bed.slots, bed.rings, cursors[step], bed.no_flush)

    # Twice: the first cycle fills the rings, the second is one like all others.
    cycle()
    cycle()
    measured = cycle
    if device.type == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cycle()
        measured = graph.replay
    time_s = _median_s(measured, device, rounds)
    for bed in beds:
        if not bool(bed.memory.matrix.whole[bed.slots].isfinite().all()):
            raise Refused("a matrix is not finite after the measured steps")
    return time_s / steps / copies


def _spread(bed: Bed, step: int) -> Tensor:
    """Cursors that differ from slot to slot, `step` steps on."""
    return ((torch.arange(bed.rows + 1, device=bed.slots.device) + step) % bed.length).int()


def _median_s(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """The median of some rounds after two that warm up."""
    times: list[float] = []
    for _ in range(2 + rounds):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        else:
            started_s = time.perf_counter()
            work()
            times.append(time.perf_counter() - started_s)
    return median(times[2:])
