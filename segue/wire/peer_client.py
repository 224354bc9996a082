"""Another worker as a peer for handoffs, in our types and errors; knows nothing of transports or retries."""

import grpc.aio

from segue.errors import WorkerUnavailable
from segue.handoff import FromReceiver, FromSender, Ticket
from segue.ids import WorkerId
from segue.peering import Introduction, Life, ProcessIdentity, SelfTest
from segue.v1 import transfer_pb2 as pb
from segue.v1.transfer_pb2_grpc import PeerStub, PrefillStub
from segue.wire.channel import PLAIN, TlsConfig, open_channel
from segue.wire.client import own_error, own_reply
from segue.wire.transfer_calls import (
    introduction_from_proto,
    introduction_to_proto,
    life_from_proto,
    process_to_proto,
    self_test_to_proto,
    settle_to_proto,
)
from segue.wire.transfer_stream import receiver_message_to_proto, sender_message_from_proto


class PrefillCall:
    """One request's open handoff stream, seen by its receiver. One reader and one writer at a time.

    The receiver ends it. A sender that ended it first would race with what the receiver writes, and a write that fails
    takes with it every message that was not read yet.
    """

    def __init__(self, call: "grpc.aio.StreamStreamCall[pb.ReceiverMessage, pb.SenderMessage]") -> None:
        self._call = call

    async def read(self) -> FromSender:
        """The next message. Raises WorkerUnavailable when the stream has ended without an error of its own."""
        message = await own_error(self._call.read())
        if not isinstance(message, pb.SenderMessage):
            raise WorkerUnavailable("the sender closed the handoff call")
        return sender_message_from_proto(message)

    async def write(self, message: FromReceiver) -> None:
        """Sends one message; waits while the sender takes none."""
        await own_error(self._call.write(receiver_message_to_proto(message)))

    def cancel(self) -> None:
        """Ends the call; a read that waits raises WorkerUnavailable."""
        self._call.cancel()


class PeerClient:
    """The peer calls of one worker at `address` (host:port). Every failure is a ServingError."""

    def __init__(self, address: str, tls: TlsConfig = PLAIN) -> None:
        self.address = address
        self._channel = open_channel(address, tls)
        self._peer = PeerStub(self._channel)
        self._prefill = PrefillStub(self._channel)

    async def connect(self, ours: Introduction, timeout_s: float) -> Introduction:
        call = self._peer.Connect(introduction_to_proto(ours), timeout=timeout_s)
        return introduction_from_proto(await own_reply(call, pb.Introduction))

    async def self_test(self, test: SelfTest, timeout_s: float) -> None:
        """Returns once the peer's write has settled."""
        await own_reply(self._peer.SelfTest(self_test_to_proto(test), timeout=timeout_s), pb.SelfTestReply)

    async def settle(self, worker_id: WorkerId, ticket: Ticket, timeout_s: float) -> None:
        """Returns once nothing is, or ever will be, written under the ticket."""
        call = self._peer.Settle(settle_to_proto(worker_id, ticket), timeout=timeout_s)
        await own_reply(call, pb.TicketMessage)

    async def lives(self, process: ProcessIdentity, timeout_s: float) -> Life:
        """What the worker says of another process. Raises WorkerUnavailable for an answer about some other one."""
        call = self._peer.Lives(process_to_proto(process), timeout=timeout_s)
        answered, life = life_from_proto(await own_reply(call, pb.ProcessLife))
        if answered != process:
            raise WorkerUnavailable("the worker spoke of another process than was asked for: damaged on its way")
        return life

    def prefill(self) -> PrefillCall:
        return PrefillCall(self._prefill.Prefill())

    async def close(self) -> None:
        """Ends every call and the connection."""
        await self._channel.close()
