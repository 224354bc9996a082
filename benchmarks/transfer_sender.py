"""The sending process of the transfer benchmark: an arena of known bytes, and one way to send blocks of it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
import numpy as np
import torch

from kv_transfer.blocks import Blocks, batches
from kv_transfer.nixl_agent import NixlAgent, NixlConfig
from kv_transfer.outbox import Outbox
from kv_transfer.sender import WRITE_BYTES_MAX
from segue.handoff import Start, Ticket
from segue.ids import RequestId, ReservationId
from segue.state.regions import Regions
from segue.v1 import transfer_pb2 as pb
from segue.v1 import transfer_pb2_grpc
from segue.wire.transfer_stream import receiver_message_from_proto, sender_message_to_proto

TICKET = Ticket(RequestId("benchmark"), ReservationId(1), 1)
WAIT_S = 60.0


def known_bytes(count: int) -> torch.Tensor:
    """What the sender's arena holds; the receiver makes the same to compare with."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-(1 << 62), 1 << 62, (count // 8,), generator=generator, dtype=torch.int64).view(torch.uint8)


def send(way: str, ucx_tls: str, arena_bytes: int, pipe: "Connection[Any, Any]") -> None:
    """Runs until the receiver says so; the body of a spawned process."""
    torch.set_num_threads(1)
    arena = known_bytes(arena_bytes)
    if way == "grpc":
        asyncio.run(_serve(arena, pipe))
    elif way == "tcp":
        _send_by_socket(arena, pipe)
    else:
        _send_by_nixl(arena, ucx_tls, pipe)


def _send_by_nixl(arena: torch.Tensor, ucx_tls: str, pipe: "Connection[Any, Any]") -> None:
    agent = NixlAgent("sender", Regions([arena]), torch.zeros(64, dtype=torch.uint8), NixlConfig(ucx_tls=ucx_tls))
    peer = pipe.recv()
    agent.connect(peer).result(WAIT_S)
    pipe.send("ready")
    while (blocks := pipe.recv()) is not None:
        writes = [agent.write(peer, batch, "the benchmark") for batch in batches(blocks, WRITE_BYTES_MAX)]
        for write in writes:
            write.result(WAIT_S)
        pipe.send("done")
    agent.close()


def _send_by_socket(arena: torch.Tensor, pipe: "Connection[Any, Any]") -> None:
    """The yardstick: the kernel's own stream, one `sendmsg` a block."""
    with socket.create_connection(pipe.recv()) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        memory = arena.numpy().data
        while (blocks := pipe.recv()) is not None:
            for source, _, size in blocks.tolist():
                stream.sendall(memory[source : source + size])


async def _serve(arena: torch.Tensor, pipe: "Connection[Any, Any]") -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    transfer_pb2_grpc.add_PrefillServicer_to_server(_Prefill(arena), server)
    pipe.send(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await server.stop(0)


class _Prefill(transfer_pb2_grpc.PrefillServicer):
    """Each call sends the blocks that its first message lists."""

    def __init__(self, arena: torch.Tensor) -> None:
        self._arena = arena

    async def Prefill(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.ReceiverMessage],
        context: "grpc.aio.ServicerContext[pb.ReceiverMessage, pb.SenderMessage]",
    ) -> AsyncIterator[pb.SenderMessage]:
        start = receiver_message_from_proto(await anext(request_iterator))
        assert isinstance(start, Start)
        blocks: Blocks = np.array(json.loads(start.request.extension), dtype=np.int64)
        outbox = Outbox(asyncio.get_running_loop(), Regions([self._arena]))
        outbox.put_blocks(TICKET, blocks, "the benchmark")
        outbox.finish()
        async with aclosing(outbox.messages()) as messages:
            async for message in messages:
                yield sender_message_to_proto(message)
