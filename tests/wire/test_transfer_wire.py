"""Everything two workers say to each other survives the wire; what this build does not know is refused."""

import pytest

from segue.batch.news import Usage
from segue.batch.sampling import SamplingParams
from segue.batch.submission import GenerateSpec
from segue.errors import InvalidRequest, LeaseExpired, TransferRefused
from segue.handoff import (
    Ask,
    Beat,
    BlockBytes,
    CheckpointPushed,
    Finished,
    FromReceiver,
    FromSender,
    Grant,
    HandoffFailed,
    Part,
    Progress,
    Renewed,
    Settled,
    Start,
    StateDigest,
    Terms,
    Ticket,
    TransportName,
    UnitRow,
    Withdraw,
)
from segue.ids import RequestId, ReservationId, RouterId, WorkerId
from segue.peering import (
    ArenaMap,
    ArenaPart,
    Introduction,
    Life,
    MemoryRegion,
    NixlEndpoint,
    ProcessIdentity,
    SelfTest,
    metadata_digest,
)
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken, token_array
from segue.v1 import transfer_pb2 as pb
from segue.v1 import worker_pb2
from segue.wire.transfer_calls import (
    introduction_from_proto,
    introduction_to_proto,
    life_from_proto,
    life_to_proto,
    process_from_proto,
    process_to_proto,
    self_test_from_proto,
    self_test_to_proto,
    settle_from_proto,
    settle_to_proto,
)
from segue.wire.transfer_stream import (
    receiver_message_from_proto,
    receiver_message_to_proto,
    sender_message_from_proto,
    sender_message_to_proto,
)

TICKET = Ticket(RequestId("r-1"), ReservationId(1 << 40), 3)
LARGE = 5 << 32
SPEC = GenerateSpec(
    router_id=RouterId("router"),
    request_id=RequestId("r-1"),
    attempt=3,
    prompt=token_array((1, 2, 3)),
    sampling=SamplingParams(seed=7, logprobs=2),
    cache_salt="s",
)
ROWS = (
    UnitRow(Part.STATE, ComponentName.FULL, 2, (9, 8)),
    UnitRow(Part.CHECKPOINT, ComponentName.RECURRENT, 0, (3,)),
)
PROCESS = ProcessIdentity("boot", 1 << 32, 2 << 32, 3 << 32, 77, LARGE)
DIGESTS = (StateDigest(ComponentName.FULL, "ab"), StateDigest(ComponentName.RECURRENT, "cd"))

FROM_RECEIVER: list[FromReceiver] = [
    Start(WorkerId("w"), TransportName.NIXL, 128, SPEC),
    Grant(TICKET, 4, Terms(300, 128, 256), "digest", 30.0, ROWS),
    Grant(TICKET, 4, Terms(300, 0), "digest", 30.0, ROWS[:1]),
    Renewed(TICKET, 12),
    Withdraw(TICKET),
    Beat(5),
]
FROM_SENDER: list[FromSender] = [
    Ask(4, 300, 256),
    Ask(4, 300, None),
    Progress(TICKET, 12, 256),
    BlockBytes(TICKET, (LARGE, 7), (2, 1), b"abc", 0xFFFFFFFF),
    Finished(TICKET, EmittedToken(5, -0.5, ((5, -0.5), (6, -2.0))), Usage(300, 1, 128), DIGESTS),
    Finished(None, EmittedToken(5, 0.0), Usage(300, 1), (), "stop"),
    Finished(None, EmittedToken(5, None), Usage(300, 1), (), "stop"),
    CheckpointPushed(TICKET, 256, DIGESTS),
    Settled(TICKET),
    Beat(5),
]


@pytest.mark.parametrize("message", FROM_RECEIVER, ids=lambda message: type(message).__name__)
def test_what_a_receiver_says_arrives_as_it_was(message: FromReceiver) -> None:
    raw = receiver_message_to_proto(message).SerializeToString()
    assert receiver_message_from_proto(pb.ReceiverMessage.FromString(raw)) == message


@pytest.mark.parametrize("message", FROM_SENDER, ids=lambda message: type(message).__name__)
def test_what_a_sender_says_arrives_as_it_was(message: FromSender) -> None:
    raw = sender_message_to_proto(message).SerializeToString()
    assert sender_message_from_proto(pb.SenderMessage.FromString(raw)) == message


def test_a_failure_keeps_its_class_and_message() -> None:
    sent = sender_message_to_proto(HandoffFailed(LeaseExpired("too late", param="lease_s")))
    came = sender_message_from_proto(sent)
    assert isinstance(came, HandoffFailed)
    assert type(came.error) is LeaseExpired
    assert (came.error.message, came.error.param) == ("too late", "lease_s")


def introduction(nixl: NixlEndpoint | None) -> Introduction:
    return Introduction(
        worker_id=WorkerId("w"),
        protocol_version=1,
        fingerprint=(("a", "1"), ("b", "2")),
        tp_size=2,
        arena=ArenaMap(LARGE, tuple(ArenaPart(ComponentName.WINDOW, LARGE, 1 << 33, 7, rank) for rank in range(2))),
        process=PROCESS,
        nixl=nixl,
    )


def test_an_introduction_arrives_as_it_was_with_and_without_nixl() -> None:
    arena = MemoryRegion(1 << 63, LARGE, "cuda", 3), MemoryRegion(1 << 61, LARGE, "cuda", 4, offset=2 * LARGE)
    scratch = MemoryRegion(1 << 62, 9, "cpu", 0)
    endpoint = NixlEndpoint("agent", b"\0blob", metadata_digest(b"\0blob"), arena, scratch)
    assert endpoint.arena_bytes == 3 * LARGE
    for value in (introduction(endpoint), introduction(None)):
        raw = introduction_to_proto(value).SerializeToString()
        came = introduction_from_proto(pb.Introduction.FromString(raw))
        assert dict(came.fingerprint) == dict(value.fingerprint)
        assert (came.tp_size, came.arena, came.process, came.nixl) == (
            value.tp_size,
            value.arena,
            value.process,
            value.nixl,
        )


def test_an_endpoint_without_memory_is_refused() -> None:
    message = introduction_to_proto(introduction(NixlEndpoint("agent", b"", b"", (), MemoryRegion(0, 1, "cpu", 0))))
    with pytest.raises(TransferRefused, match="NIXL endpoint of agent has no memory"):
        introduction_from_proto(message)


def test_truncated_metadata_is_refused_before_the_library_sees_it() -> None:
    region = MemoryRegion(0, 1, "cpu", 0)
    NixlEndpoint("agent", b"blob", metadata_digest(b"blob"), (region,), region).require_whole()
    with pytest.raises(TransferRefused, match=r"metadata of agent arrived damaged \(3 bytes\)"):
        NixlEndpoint("agent", b"blo", metadata_digest(b"blob"), (region,), region).require_whole()


def test_the_unary_calls_keep_their_values() -> None:
    test = SelfTest(WorkerId("w"), LARGE, 16, b"\0seed")
    assert self_test_from_proto(self_test_to_proto(test)) == test
    assert settle_from_proto(settle_to_proto(WorkerId("w"), TICKET)) == (WorkerId("w"), TICKET)


@pytest.mark.parametrize("life", Life)
def test_what_a_worker_says_of_a_process_arrives_as_it_was(life: Life) -> None:
    asked = pb.ProcessIdentity.FromString(process_to_proto(PROCESS).SerializeToString())
    assert process_from_proto(asked) == PROCESS
    answer = pb.ProcessLife.FromString(life_to_proto(PROCESS, life).SerializeToString())
    assert life_from_proto(answer) == (PROCESS, life)


def test_a_word_on_a_process_that_is_cut_or_not_known_here_tells_nothing() -> None:
    for message in (pb.ProcessLife(), pb.ProcessLife(life="gon"), pb.ProcessLife(life="undead")):
        assert life_from_proto(message)[1] is Life.UNKNOWN


def test_what_this_build_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        receiver_message_from_proto(pb.ReceiverMessage())
    with pytest.raises(TransferRefused):
        sender_message_from_proto(pb.SenderMessage())
    with pytest.raises(TransferRefused, match="'pigeon'"):
        receiver_message_from_proto(
            pb.ReceiverMessage(start=pb.Start(transport="pigeon", request=worker_pb2.GenerateRequest()))
        )
    row = pb.UnitRow(part="state", component="soul", first=0, units=[1])
    with pytest.raises(TransferRefused, match="'soul'"):
        receiver_message_from_proto(pb.ReceiverMessage(grant=pb.Grant(rows=[row], lease_s=1)))
    arena = pb.Arena(bytes=64, parts=[pb.ArenaPart(component="full", unit_bytes=64, units=1)])
    for tp_size in (0, 2, 1 << 31):
        with pytest.raises(TransferRefused, match=f"{tp_size} ranks share 1 part"):
            introduction_from_proto(pb.Introduction(tp_size=tp_size, arena=arena, process=pb.ProcessIdentity()))


def test_a_message_without_the_field_that_comes_last_was_cut_and_is_refused() -> None:
    cut = "cut on its way"
    with pytest.raises(TransferRefused, match=cut):
        receiver_message_from_proto(pb.ReceiverMessage(start=pb.Start(worker_id="w", transport="grpc")))
    with pytest.raises(TransferRefused, match=cut):
        receiver_message_from_proto(pb.ReceiverMessage(grant=pb.Grant(plan_digest="p", lease_s=1)))
    with pytest.raises(TransferRefused, match=cut):
        sender_message_from_proto(pb.SenderMessage(finished=pb.HandoffFinished(token_id=7, logprob=-0.5)))
    with pytest.raises(TransferRefused, match=cut):
        introduction_from_proto(pb.Introduction(worker_id="w", tp_size=1, arena=pb.Arena(bytes=1)))
