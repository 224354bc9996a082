"""Who is proven dead among a worker's peers: by its own watch, by the word of one that can know, or not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc.aio
import pytest
import torch

from kv_transfer.peer_servicer import PeerServicer
from kv_transfer.peers import Peers
from kv_transfer.process import ProcessWatch, own_process
from kv_transfer.scratch import Scratch
from segue.errors import WorkerUnavailable
from segue.handoff import Ticket, TransportName
from segue.ids import WorkerId
from segue.peering import ArenaMap, Introduction, Life, ProcessIdentity
from segue.v1 import transfer_pb2_grpc
from segue.wire.peer_client import PeerClient
from segue.wire.transfer_calls import life_to_proto
from tests.support.live_process import ELSEWHERE, becomes, end, identity, see_nothing, start
from tests.support.wire_proxy import Messages, WireProxy

PEER = WorkerId("peer")


def introduction(worker_id: WorkerId, process: ProcessIdentity) -> Introduction:
    return Introduction(
        worker_id=worker_id,
        protocol_version=1,
        fingerprint=(),
        tp_size=1,
        arena=ArenaMap(0, ()),
        process=process,
    )


def seeing() -> Peers:
    """Peers of a worker that watches its own machine."""
    return Peers(introduction(WorkerId("ours"), own_process()), None, Scratch(torch.device("cpu")))


def elsewhere() -> Peers:
    """Peers of a worker that can watch none of them."""
    ours = introduction(WorkerId("ours"), replace(own_process(), boot="ours"))
    return Peers(ours, None, Scratch(torch.device("cpu")), (TransportName.GRPC,), timeout_s=5.0, watch=see_nothing)


async def no_settle(worker_id: WorkerId, ticket: Ticket) -> None:
    """Nobody here has anything to settle."""


@asynccontextmanager
async def beside_it() -> AsyncIterator[PeerClient]:
    """A worker of this machine, in this process."""
    server = grpc.aio.server()
    theirs = Peers(introduction(WorkerId("beside"), own_process()), None, Scratch(torch.device("cpu")))
    transfer_pb2_grpc.add_PeerServicer_to_server(PeerServicer(theirs, no_settle), server)
    client = PeerClient(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    yield client
    await client.close()
    await server.stop(None)


async def dead_by_word(peers: Peers, peer: Introduction, client: PeerClient) -> set[WorkerId]:
    """Asks until somebody is known to be dead; whoever else has ended may have left something to send at first."""
    async with asyncio.timeout(20):
        while not (dead := peers.take_dead()):
            await peers.inquire(peer, [client])
    return dead


async def test_a_death_is_told_once_and_also_of_a_peer_that_was_forgotten() -> None:
    peers = seeing()
    with start() as one, start() as other:
        await peers.meet(introduction(PEER, identity(one)))
        await peers.meet(introduction(WorkerId("other"), identity(other)))
        await peers.forget(PEER)
        assert peers.take_dead() == set()
        end(one)
        assert becomes(peers.take_dead, {PEER})
        assert peers.take_dead() == set()
        end(other)
        assert becomes(peers.take_dead, {WorkerId("other")})


async def test_a_worker_beside_a_peer_that_cannot_be_watched_tells_of_its_death() -> None:
    peers = elsewhere()
    async with beside_it() as client:
        with start() as process:
            peer = introduction(PEER, identity(process))
            await peers.meet(peer)
            await peers.inquire(peer, [client])
            assert peers.take_dead() == set()
            end(process)
            assert await dead_by_word(peers, peer, client) == {PEER}


@pytest.mark.parametrize("place", ELSEWHERE)
async def test_nothing_is_proven_by_a_worker_that_cannot_know(place: str) -> None:
    peers = elsewhere()
    with start() as process:
        dead = identity(process)
        end(process)
    peer = introduction(PEER, ELSEWHERE[place](dead))
    async with beside_it() as client:
        await peers.meet(peer)
        await peers.inquire(peer, [client])
        assert await client.lives(peer.process, 5.0) is Life.UNKNOWN
    assert peers.take_dead() == set()


async def test_a_number_that_was_given_to_another_process_does_not_keep_its_first_owner_alive() -> None:
    peers = elsewhere()
    ours = own_process()
    peer = introduction(PEER, replace(ours, start_ticks=ours.start_ticks - 1))
    async with beside_it() as client:
        await peers.meet(peer)
        assert await dead_by_word(peers, peer, client) == {PEER}


async def test_only_workers_where_the_peer_runs_are_beside_it() -> None:
    peers = elsewhere()
    async with beside_it() as client:
        await peers.connect(client)
        peer = introduction(PEER, own_process())
        assert peers.beside(peer) == [client.address]
        assert peers.beside(replace(peer, process=replace(peer.process, pid_namespace=1))) == []
        assert peers.beside(replace(peer, worker_id=WorkerId("beside"))) == []


async def test_an_answer_about_another_process_or_none_proves_nothing() -> None:
    peers = elsewhere()
    ours = own_process()
    peer = introduction(PEER, ours)

    async def about_another(messages: Messages) -> AsyncIterator[bytes]:
        async for _ in messages:
            yield life_to_proto(replace(ours, pid=ours.pid + 1), Life.GONE).SerializeToString()

    async with beside_it() as client, WireProxy(client.address) as proxy:
        proxy.down["Lives"] = about_another
        disturbed, nobody = PeerClient(proxy.address), PeerClient("127.0.0.1:1")
        with pytest.raises(WorkerUnavailable, match="another process"):
            await disturbed.lives(ours, 5.0)
        await peers.meet(peer)
        await peers.inquire(peer, [disturbed, nobody])
        await disturbed.close()
        await nobody.close()
    assert peers.take_dead() == set()


async def test_nobody_is_asked_about_a_peer_that_is_watched_from_here() -> None:
    peers = seeing()
    peer = introduction(PEER, own_process())
    await peers.meet(peer)
    async with beside_it() as client, WireProxy(client.address) as proxy:
        asked: list[bytes] = []

        async def noted(messages: Messages) -> AsyncIterator[bytes]:
            async for message in messages:
                asked.append(message)
                yield message

        proxy.up["Lives"] = noted
        through = PeerClient(proxy.address)
        await peers.inquire(peer, [through])
        assert asked == []
        assert ProcessWatch.open(peer.process) is not None
        await through.lives(peer.process, 5.0)
        assert len(asked) == 1
        await through.close()
