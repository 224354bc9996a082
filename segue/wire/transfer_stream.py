"""Messages of one request's handoff, proto to value and back; decides nothing."""

from collections.abc import Sequence

from segue.batch.news import Usage
from segue.errors import InvalidRequest, TransferRefused
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
    Progress,
    Renewed,
    Settled,
    Start,
    StateDigest,
    Terms,
    TransportName,
    UnitRow,
    Withdraw,
)
from segue.ids import WorkerId
from segue.tokens import EmittedToken
from segue.v1 import transfer_pb2 as pb
from segue.v1 import worker_pb2
from segue.wire.calls import generate_from_proto, generate_to_proto
from segue.wire.faults import error_from_code
from segue.wire.transfer_calls import component_from_proto, part_from_proto, ticket_from_proto, ticket_to_proto

_TRANSPORTS = {name.value: name for name in TransportName}


def receiver_message_to_proto(value: FromReceiver) -> pb.ReceiverMessage:
    match value:
        case Start():
            start = pb.Start(
                worker_id=value.worker_id,
                transport=value.transport.value,
                held_tokens=value.held_tokens,
                request=generate_to_proto(value.request),
            )
            return pb.ReceiverMessage(start=start)
        case Grant():
            return pb.ReceiverMessage(grant=_grant_to_proto(value))
        case Renewed():
            renewed = pb.Renewed(ticket=ticket_to_proto(value.ticket), sequence=value.sequence)
            return pb.ReceiverMessage(renewed=renewed)
        case Withdraw():
            return pb.ReceiverMessage(withdraw=pb.Withdraw(ticket=ticket_to_proto(value.ticket)))
        case Beat():
            return pb.ReceiverMessage(heartbeat=worker_pb2.Heartbeat(sequence=value.sequence))


def receiver_message_from_proto(message: pb.ReceiverMessage) -> FromReceiver:
    """Raises InvalidRequest or TransferRefused for what this build does not know."""
    match message.WhichOneof("kind"):
        case "start":
            start = message.start
            if not start.HasField("request"):
                raise TransferRefused(f"{start.worker_id} starts no request: the message was cut on its way")
            if (transport := _TRANSPORTS.get(start.transport)) is None:
                raise TransferRefused(f"{start.worker_id} wants the transport {start.transport!r}, not known here")
            return Start(WorkerId(start.worker_id), transport, start.held_tokens, generate_from_proto(start.request))
        case "grant":
            return _grant_from_proto(message.grant)
        case "renewed":
            return Renewed(ticket_from_proto(message.renewed.ticket), message.renewed.sequence)
        case "withdraw":
            return Withdraw(ticket_from_proto(message.withdraw.ticket))
        case "heartbeat":
            return Beat(message.heartbeat.sequence)
        case kind:
            raise InvalidRequest(f"a receiver sent a message of kind {kind}; is it a newer build?")


def sender_message_to_proto(value: FromSender) -> pb.SenderMessage:
    match value:
        case BlockBytes():
            blocks = pb.Blocks(
                ticket=ticket_to_proto(value.ticket),
                offsets=value.offsets,
                lengths=value.lengths,
                payload=value.payload,
                crc32=value.crc32,
            )
            return pb.SenderMessage(blocks=blocks)
        case Ask():
            ask = pb.Ask(number=value.number, prompt_tokens=value.prompt_tokens, checkpoint=value.checkpoint)
            return pb.SenderMessage(ask=ask)
        case Progress():
            progress = pb.Progress(
                ticket=ticket_to_proto(value.ticket), sequence=value.sequence, computed=value.computed
            )
            return pb.SenderMessage(progress=progress)
        case Finished():
            return pb.SenderMessage(finished=_finished_to_proto(value))
        case CheckpointPushed():
            pushed = pb.CheckpointPushed(
                ticket=ticket_to_proto(value.ticket), depth=value.depth, digests=_digests_to_proto(value.digests)
            )
            return pb.SenderMessage(checkpoint=pushed)
        case Settled():
            return pb.SenderMessage(settled=pb.Settled(ticket=ticket_to_proto(value.ticket)))
        case HandoffFailed():
            error = worker_pb2.Error(code=value.error.kind.code, message=value.error.message)
            return pb.SenderMessage(failed=pb.Failed(error=error, param=value.error.param or ""))
        case Beat():
            return pb.SenderMessage(heartbeat=worker_pb2.Heartbeat(sequence=value.sequence))


def sender_message_from_proto(message: pb.SenderMessage) -> FromSender:
    """Raises TransferRefused for what this build does not know."""
    match message.WhichOneof("kind"):
        case "blocks":
            blocks = message.blocks
            return BlockBytes(
                ticket_from_proto(blocks.ticket),
                tuple(blocks.offsets),
                tuple(blocks.lengths),
                blocks.payload,
                blocks.crc32,
            )
        case "ask":
            ask = message.ask
            return Ask(ask.number, ask.prompt_tokens, ask.checkpoint if ask.HasField("checkpoint") else None)
        case "progress":
            progress = message.progress
            return Progress(ticket_from_proto(progress.ticket), progress.sequence, progress.computed)
        case "finished":
            return _finished_from_proto(message.finished)
        case "checkpoint":
            pushed = message.checkpoint
            return CheckpointPushed(ticket_from_proto(pushed.ticket), pushed.depth, _digests_from_proto(pushed.digests))
        case "settled":
            return Settled(ticket_from_proto(message.settled.ticket))
        case "failed":
            error = message.failed.error
            return HandoffFailed(error_from_code(error.code, error.message, message.failed.param or None))
        case "heartbeat":
            return Beat(message.heartbeat.sequence)
        case kind:
            raise TransferRefused(f"a sender sent a message of kind {kind}; is it a newer build?")


def _grant_to_proto(value: Grant) -> pb.Grant:
    return pb.Grant(
        ticket=ticket_to_proto(value.ticket),
        ask=value.ask,
        prompt_tokens=value.terms.prompt_tokens,
        held_tokens=value.terms.held_tokens,
        checkpoint=value.terms.checkpoint,
        plan_digest=value.plan_digest,
        lease_s=value.lease_s,
        rows=[
            pb.UnitRow(part=row.part.value, component=row.component.value, first=row.first, units=_units(row))
            for row in value.rows
        ],
    )


def _grant_from_proto(message: pb.Grant) -> Grant:
    if not message.rows or message.lease_s <= 0:
        raise TransferRefused("a grant names no units or no lease: the message was cut on its way")
    checkpoint = message.checkpoint if message.HasField("checkpoint") else None
    rows = tuple(
        UnitRow(part_from_proto(row.part), component_from_proto(row.component), row.first, tuple(row.units))
        for row in message.rows
    )
    return Grant(
        ticket_from_proto(message.ticket),
        message.ask,
        Terms(message.prompt_tokens, message.held_tokens, checkpoint),
        message.plan_digest,
        message.lease_s,
        rows,
    )


def _units(row: UnitRow) -> list[int]:
    units = [unit for unit in row.units if unit is not None]
    assert len(units) == len(row.units), "a grant has no holes"
    return units


def _finished_to_proto(value: Finished) -> pb.HandoffFinished:
    usage = value.usage
    return pb.HandoffFinished(
        ticket=None if value.ticket is None else ticket_to_proto(value.ticket),
        token_id=value.token.token_id,
        logprob=value.token.logprob,
        top_token_id=[token for token, _ in value.token.top],
        top_logprob=[logprob for _, logprob in value.token.top],
        usage=worker_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        digests=_digests_to_proto(value.digests),
        reason=value.reason,
    )


def _finished_from_proto(message: pb.HandoffFinished) -> Finished:
    if not message.HasField("usage"):
        raise TransferRefused("the end of a handoff lacks its last field: the message was cut on its way")
    if len(message.top_token_id) != len(message.top_logprob):
        raise TransferRefused("a first token came with alternatives that lack a logprob")
    top = tuple(zip(message.top_token_id, message.top_logprob, strict=True))
    usage = message.usage
    return Finished(
        ticket_from_proto(message.ticket) if message.HasField("ticket") else None,
        EmittedToken(message.token_id, message.logprob if message.HasField("logprob") else None, top),
        Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        _digests_from_proto(message.digests),
        message.reason,
    )


def _digests_to_proto(digests: Sequence[StateDigest]) -> list[pb.StateDigest]:
    return [pb.StateDigest(component=digest.component.value, value=digest.value) for digest in digests]


def _digests_from_proto(messages: Sequence[pb.StateDigest]) -> tuple[StateDigest, ...]:
    return tuple(StateDigest(component_from_proto(message.component), message.value) for message in messages)
