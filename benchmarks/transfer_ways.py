"""The receiving process of the transfer benchmark: one way in, timed from asking for blocks to having them all."""

import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.refusal import Refused
from benchmarks.transfer_sender import WAIT_S, known_bytes, send
from kv_transfer.block_messages import put_message
from kv_transfer.blocks import Blocks, byte_count
from kv_transfer.nixl_agent import NixlAgent, NixlConfig
from segue.batch.sampling import SamplingParams
from segue.batch.submission import GenerateSpec
from segue.handoff import BlockBytes, Part, Start, TransportName, UnitRow
from segue.ids import RequestId, RouterId, WorkerId
from segue.peering import ArenaMap, ArenaPart
from segue.state.regions import Regions
from segue.state.spec import ComponentName
from segue.wire.peer_client import PeerClient


class Way(Protocol):
    """Gets blocks of the sender's arena into this process's."""

    def fetch(self, blocks: Blocks) -> None:
        """Returns when every byte is here."""


class NixlWay:
    def __init__(self, arena: torch.Tensor, ucx_tls: str, pipe: "Connection[Any, Any]") -> None:
        self._agent = NixlAgent(
            "receiver", Regions([arena]), torch.zeros(64, dtype=torch.uint8), NixlConfig(ucx_tls=ucx_tls)
        )
        self._agent.expect()
        self._pipe = pipe
        pipe.send(self._agent.endpoint)
        pipe.recv()

    def fetch(self, blocks: Blocks) -> None:
        self._pipe.send(blocks)
        assert self._pipe.poll(WAIT_S), "the sender does not answer"
        self._pipe.recv()


class GrpcWay:
    def __init__(self, arena: torch.Tensor, pipe: "Connection[Any, Any]") -> None:
        self._arena = arena
        self._map = ArenaMap(arena.numel(), (ArenaPart(ComponentName.FULL, 0, arena.numel() // 2, 2),))
        self._rows = [UnitRow(Part.STATE, ComponentName.FULL, 0, (0, 1))]
        self._loop = asyncio.new_event_loop()
        address: str = pipe.recv()
        self._client = self._loop.run_until_complete(self._open(address))

    def fetch(self, blocks: Blocks) -> None:
        self._loop.run_until_complete(self._fetch(blocks))

    async def _open(self, address: str) -> PeerClient:
        return PeerClient(address)

    async def _fetch(self, blocks: Blocks) -> None:
        spec = GenerateSpec(
            router_id=RouterId("benchmark"),
            request_id=RequestId("benchmark"),
            attempt=1,
            prompt=(1,),
            sampling=SamplingParams(seed=0),
            extension=json.dumps(blocks.tolist()).encode(),
        )
        call = self._client.prefill()
        await call.write(Start(WorkerId("benchmark"), TransportName.GRPC, 0, spec))
        missing = byte_count(blocks)
        while missing:
            message = await call.read()
            assert isinstance(message, BlockBytes)
            put_message(Regions([self._arena]), self._map, message, self._rows)
            missing -= len(message.payload)
        call.cancel()


class SocketWay:
    """The yardstick: the kernel's own stream, straight into place."""

    def __init__(self, arena: torch.Tensor, pipe: "Connection[Any, Any]") -> None:
        self._memory = arena.numpy().data
        self._pipe = pipe
        with socket.create_server(("127.0.0.1", 0)) as listener:
            pipe.send(listener.getsockname())
            self._stream, _ = listener.accept()

    def fetch(self, blocks: Blocks) -> None:
        self._pipe.send(blocks)
        for _, target, size in blocks.tolist():
            while size:
                taken = self._stream.recv_into(self._memory[target : target + size])
                assert taken, "the sender closed the stream"
                target, size = target + taken, size - taken


class CopyWay:
    """The other yardstick: a copy within one process."""

    def __init__(self, arena: torch.Tensor) -> None:
        self._arena, self._source = arena, known_bytes(arena.numel())

    def fetch(self, blocks: Blocks) -> None:
        for source, target, size in blocks.tolist():
            self._arena[target : target + size] = self._source[source : source + size]


def measure_way(way: str, layouts: Sequence[tuple[str, Blocks]], rounds: int, answer: "Connection[Any, Any]") -> None:
    """GB/s by layout name, or why there is none; the body of a spawned process, which spawns the sender."""
    torch.set_num_threads(1)
    arena_bytes = max(int((blocks[:, :2] + blocks[:, 2:]).max()) for _, blocks in layouts)
    arena, source = torch.zeros(arena_bytes, dtype=torch.uint8), known_bytes(arena_bytes)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    ucx_tls = "tcp" if way == "nixl-tcp" else ""
    sender = context.Process(target=send, args=(way, ucx_tls, arena_bytes, theirs), daemon=False)
    if way != "memcpy":
        sender.start()
    opened: Way
    match way:
        case "memcpy":
            opened = CopyWay(arena)
        case "tcp":
            opened = SocketWay(arena, ours)
        case "grpc":
            opened = GrpcWay(arena, ours)
        case _:
            opened = NixlWay(arena, ucx_tls, ours)
    try:
        found = {name: rate(opened, arena, source, blocks, rounds) for name, blocks in layouts}
        answer.send(found)
    except Refused as refusal:
        answer.send(str(refusal))
    if way != "memcpy":
        ours.send(None)
        sender.join(WAIT_S)


def rate(
    way: Way, arena: torch.Tensor, source: torch.Tensor, blocks: Blocks, rounds: int, seconds_min: float = 0.5
) -> float:
    """GB/s of fetching the blocks. Raises Refused when what is there afterwards is not what was sent."""
    arena.zero_()
    seconds: list[float] = []
    # Small transfers are repeated until they fill a moment, because one alone says little.
    while len(seconds) <= rounds or sum(seconds) < seconds_min:
        started_s = time.perf_counter()
        way.fetch(blocks)
        seconds.append(time.perf_counter() - started_s)
    for start, target, size in blocks.tolist():
        if not torch.equal(arena[target : target + size], source[start : start + size]):
            raise Refused(f"bytes [{target}, {target + size}) arrived other than they were sent")
    # The first round connects and touches memory for the first time.
    return byte_count(blocks) / median(seconds[1:]) / 1e9


def scattered(total_bytes: int, page_bytes: int, seed: int) -> Blocks:
    """Pages in any order at both ends, none beside its neighbour in both."""
    count = max(1, total_bytes // page_bytes)
    random = np.random.default_rng(seed)
    blocks = np.empty((count, 3), dtype=np.int64)
    blocks[:, 0], blocks[:, 1] = random.permutation(count) * page_bytes, random.permutation(count) * page_bytes
    blocks[:, 2] = page_bytes
    return blocks


def contiguous(total_bytes: int) -> Blocks:
    """One block."""
    return np.array([[0, 0, total_bytes]], dtype=np.int64)
