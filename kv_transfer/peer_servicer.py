"""The Peer service: proto in, our types to the registry of peers, our types out; decides nothing."""

from collections.abc import Awaitable, Callable

import grpc.aio

from kv_transfer.peers import Peers
from segue.handoff import Ticket
from segue.ids import WorkerId
from segue.v1 import transfer_pb2 as pb
from segue.v1 import transfer_pb2_grpc
from segue.wire.transfer_calls import (
    introduction_from_proto,
    introduction_to_proto,
    life_to_proto,
    process_from_proto,
    self_test_from_proto,
    settle_from_proto,
)


class PeerServicer(transfer_pb2_grpc.PeerServicer):
    """`settle` ends once nothing is, or ever will be, written under the ticket to that worker."""

    def __init__(self, peers: Peers, settle: Callable[[WorkerId, Ticket], Awaitable[None]]) -> None:
        self._peers = peers
        self._settle = settle

    async def Connect(  # noqa: N802
        self, request: pb.Introduction, context: "grpc.aio.ServicerContext[pb.Introduction, pb.Introduction]"
    ) -> pb.Introduction:
        await self._peers.meet(introduction_from_proto(request))
        return introduction_to_proto(self._peers.introduction)

    async def SelfTest(  # noqa: N802
        self, request: pb.SelfTestRequest, context: "grpc.aio.ServicerContext[pb.SelfTestRequest, pb.SelfTestReply]"
    ) -> pb.SelfTestReply:
        await self._peers.write_self_test(self_test_from_proto(request))
        return pb.SelfTestReply()

    async def Settle(  # noqa: N802
        self, request: pb.TicketMessage, context: "grpc.aio.ServicerContext[pb.TicketMessage, pb.TicketMessage]"
    ) -> pb.TicketMessage:
        await self._settle(*settle_from_proto(request))
        return request

    async def Lives(  # noqa: N802
        self, request: pb.ProcessIdentity, context: "grpc.aio.ServicerContext[pb.ProcessIdentity, pb.ProcessLife]"
    ) -> pb.ProcessLife:
        process = process_from_proto(request)
        return life_to_proto(process, self._peers.witness.life(process))
