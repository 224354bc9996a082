"""How long NIXL takes to write a prompt's state into another process's arena, with nothing else running."""

import multiprocessing
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch

from benchmarks.refusal import Refused
from kv_transfer.arena_map import map_arena
from kv_transfer.blocks import Places, byte_count, cut_blocks
from kv_transfer.digest import digest_contents
from kv_transfer.nixl_agent import NixlAgent, NixlConfig
from kv_transfer.plan import Side, TransferPlan, make_plan
from kv_transfer.scratch import Scratch
from segue.handoff import Part, Terms, UnitRow
from segue.models.options import BuildOptions
from segue.peering import NixlEndpoint
from segue.state.layout import Shard, layouts
from segue.state.storage import Storage
from segue.weights.load import load_model

PAGE_TOKENS = 64
ROUNDS = 20
WAIT_S = 60.0


class Placement(Enum):
    """Pages that are neighbours in both arenas travel as one block; with `APART` each travels alone."""

    ADJACENT = "adjacent"
    APART = "apart"


def measure_writes(model: Path, device: torch.device, lengths: Sequence[int]) -> dict[str, object]:
    """Figures per prompt length and placement. Raises Refused when what arrived is not, to the bit, what was sent."""
    state = load_model(model, BuildOptions()).state
    side = Side(layouts(state, PAGE_TOKENS, Shard()), PAGE_TOKENS, state.window)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receive_writes, args=(side, str(device), list(lengths), theirs))
    process.start()
    # Held here too, it would hide that the other process has ended.
    theirs.close()
    try:
        return _send(side, device, lengths, ours)
    except EOFError:
        raise Refused("the receiving process ended") from None
    finally:
        ours.close()
        process.join(10)
        process.kill()


def receive_writes(side: Side, device: str, lengths: Sequence[int], pipe: Connection) -> None:
    """The other process: lets its arena be written, and answers with digests of what is there."""
    storage = _storage(side, torch.device(device), lengths)
    with closing(_agent(storage)) as agent:
        pipe.send(agent.endpoint)
        agent.connect(pipe.recv()).result(WAIT_S)
        agent.expect()
        pipe.send("ready")
        # Only asked after a write has settled, so that nothing runs here while one is timed.
        while (asked := pipe.recv()) is not None:
            length, placement = asked
            plan = _plan(side, length)
            pipe.send(digest_contents(storage, _rows(plan, placement), plan.contents(Part.STATE)))


def _send(side: Side, device: torch.device, lengths: Sequence[int], pipe: Connection) -> dict[str, object]:
    storage = _storage(side, device, lengths)
    figures: dict[str, object] = {}
    with closing(_agent(storage)) as agent:
        peer = pipe.recv()
        agent.connect(peer).result(WAIT_S)
        pipe.send(agent.endpoint)
        pipe.recv()
        for length in lengths:
            for placement in Placement:
                key = f"{length}_tokens_{placement.value}"
                figures[key] = _write(storage, agent, peer, _plan(side, length), placement, pipe)
        pipe.send(None)
    return figures


def _write(
    storage: Storage,
    agent: NixlAgent,
    peer: NixlEndpoint,
    plan: TransferPlan,
    placement: Placement,
    pipe: Connection,
) -> dict[str, object]:
    arena, length = map_arena(storage), plan.terms.prompt_tokens
    rows = _rows(plan, Placement.ADJACENT)
    blocks = cut_blocks(plan.state(), plan.runs, (Places(rows), arena), (Places(_rows(plan, placement)), arena))
    times = []
    for _ in range(1 + ROUNDS):
        # Fresh bytes every time: what an earlier round has left there must not pass for what this one wrote.
        _fill(storage)
        started_s = time.perf_counter()
        agent.write(peer, blocks, f"a prompt of {length} tokens").result(WAIT_S)
        times.append(time.perf_counter() - started_s)
        pipe.send((length, placement))
        if pipe.recv() != digest_contents(storage, rows, plan.contents(Part.STATE)):
            raise Refused(f"the state of {length} tokens arrived changed")
    # The first one may also connect.
    seconds, size = median(times[1:]), byte_count(blocks)
    return {
        "bytes": size,
        "blocks": len(blocks),
        "seconds": round(seconds, 7),
        "gb_per_s": round(size / seconds / 1e9, 3),
    }


def _plan(side: Side, length: int) -> TransferPlan:
    return make_plan(Terms(length, held_tokens=0), side, side)


def _storage(side: Side, device: torch.device, lengths: Sequence[int]) -> Storage:
    pages = max(lengths) // PAGE_TOKENS + 2
    return Storage(side.layouts, {layout.component: pages for layout in side.layouts}, device)


def _fill(storage: Storage) -> None:
    """Random bytes, complete in memory when this returns."""
    storage.arena.random_()
    if storage.arena.is_cuda:
        torch.cuda.synchronize(storage.arena.device)


def _agent(storage: Storage) -> NixlAgent:
    scratch = Scratch(storage.arena.device)
    return NixlAgent(f"writes-{uuid.uuid4().hex}", storage.regions, scratch.memory, NixlConfig())


def _rows(plan: TransferPlan, placement: Placement) -> list[UnitRow]:
    rows = []
    for piece in plan.state():
        units = tuple(range(1, 1 + piece.stop - piece.first))
        units = units[::-1] if placement is Placement.APART else units
        rows.append(UnitRow(piece.part, piece.component, piece.first, units))
    return rows
