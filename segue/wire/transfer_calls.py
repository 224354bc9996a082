"""Bodies of the calls between two workers, proto to value and back; decides nothing."""

from collections.abc import Sequence

from segue.errors import TransferRefused
from segue.handoff import Part, Ticket
from segue.ids import RequestId, ReservationId, WorkerId
from segue.peering import (
    ArenaMap,
    ArenaPart,
    Introduction,
    Life,
    MemoryRegion,
    NixlEndpoint,
    ProcessIdentity,
    SelfTest,
)
from segue.state.spec import ComponentName
from segue.v1 import transfer_pb2 as pb

_COMPONENTS = {name.value: name for name in ComponentName}
_PARTS = {part.value: part for part in Part}
_LIVES = {life.value: life for life in Life}


def component_from_proto(text: str) -> ComponentName:
    """Raises TransferRefused for a component that this build does not know."""
    if (name := _COMPONENTS.get(text)) is None:
        raise TransferRefused(f"the peer has state of a kind {text!r} that is not known here")
    return name


def part_from_proto(text: str) -> Part:
    """Raises TransferRefused for a part that this build does not know."""
    if (part := _PARTS.get(text)) is None:
        raise TransferRefused(f"the peer speaks of a part {text!r} that is not known here")
    return part


def ticket_to_proto(value: Ticket) -> pb.Ticket:
    return pb.Ticket(request_id=value.request_id, reservation=value.reservation, attempt=value.attempt)


def ticket_from_proto(message: pb.Ticket) -> Ticket:
    return Ticket(RequestId(message.request_id), ReservationId(message.reservation), message.attempt)


def settle_to_proto(worker_id: WorkerId, ticket: Ticket) -> pb.TicketMessage:
    return pb.TicketMessage(worker_id=worker_id, ticket=ticket_to_proto(ticket))


def settle_from_proto(message: pb.TicketMessage) -> tuple[WorkerId, Ticket]:
    return WorkerId(message.worker_id), ticket_from_proto(message.ticket)


def self_test_to_proto(value: SelfTest) -> pb.SelfTestRequest:
    return pb.SelfTestRequest(worker_id=value.worker_id, offset=value.offset, bytes=value.length, seed=value.seed)


def self_test_from_proto(message: pb.SelfTestRequest) -> SelfTest:
    return SelfTest(WorkerId(message.worker_id), message.offset, message.bytes, message.seed)


def process_to_proto(value: ProcessIdentity) -> pb.ProcessIdentity:
    return pb.ProcessIdentity(
        boot=value.boot,
        pid_namespace=value.pid_namespace,
        net_namespace=value.net_namespace,
        time_namespace=value.time_namespace,
        pid=value.pid,
        start_ticks=value.start_ticks,
    )


def process_from_proto(message: pb.ProcessIdentity) -> ProcessIdentity:
    return ProcessIdentity(
        boot=message.boot,
        pid_namespace=message.pid_namespace,
        net_namespace=message.net_namespace,
        time_namespace=message.time_namespace,
        pid=message.pid,
        start_ticks=message.start_ticks,
    )


def life_to_proto(process: ProcessIdentity, life: Life) -> pb.ProcessLife:
    return pb.ProcessLife(process=process_to_proto(process), life=life.value)


def life_from_proto(message: pb.ProcessLife) -> tuple[ProcessIdentity, Life]:
    """A word that this build does not know tells it nothing."""
    return process_from_proto(message.process), _LIVES.get(message.life, Life.UNKNOWN)


def introduction_to_proto(value: Introduction) -> pb.Introduction:
    return pb.Introduction(
        worker_id=value.worker_id,
        protocol_version=value.protocol_version,
        fingerprint=dict(value.fingerprint),
        tp_size=value.tp_size,
        arena=pb.Arena(
            bytes=value.arena.bytes,
            parts=[
                pb.ArenaPart(
                    component=part.component.value,
                    base=part.base,
                    unit_bytes=part.unit_bytes,
                    units=part.units,
                    rank=part.rank,
                )
                for part in value.arena.parts
            ],
        ),
        process=process_to_proto(value.process),
        nixl=None if value.nixl is None else _endpoint_to_proto(value.nixl),
    )


def introduction_from_proto(message: pb.Introduction) -> Introduction:
    """Raises TransferRefused for values that make no sense."""
    if not message.HasField("process"):
        raise TransferRefused(f"the introduction of {message.worker_id} lacks its last field: it was cut on its way")
    parts = tuple(
        ArenaPart(component_from_proto(part.component), part.base, part.unit_bytes, part.units, part.rank)
        for part in message.arena.parts
    )
    _require_ranks(message.worker_id, message.tp_size, parts)
    return Introduction(
        worker_id=WorkerId(message.worker_id),
        protocol_version=message.protocol_version,
        fingerprint=tuple(message.fingerprint.items()),
        tp_size=message.tp_size,
        arena=ArenaMap(message.arena.bytes, parts),
        process=process_from_proto(message.process),
        nixl=_endpoint_from_proto(message.nixl) if message.HasField("nixl") else None,
    )


def _require_ranks(worker_id: str, tp_size: int, parts: Sequence[ArenaPart]) -> None:
    """Raises TransferRefused unless every component has one part on each rank. One rank alone may have no state."""
    found: dict[ComponentName, list[int]] = {}
    for part in parts:
        found.setdefault(part.component, []).append(part.rank)
    # Counted first: a damaged degree is no reason to count up to it.
    fits = tp_size == 1 if not parts else all(len(ranks) == tp_size for ranks in found.values())
    if not fits or any(sorted(ranks) != list(range(tp_size)) for ranks in found.values()):
        raise TransferRefused(f"{worker_id} says that {tp_size} ranks share {len(parts)} parts of state")


def _endpoint_to_proto(value: NixlEndpoint) -> pb.NixlEndpoint:
    return pb.NixlEndpoint(
        agent=value.agent,
        metadata=value.metadata,
        metadata_digest=value.metadata_digest,
        arena=[_region_to_proto(region) for region in value.arena],
        scratch=_region_to_proto(value.scratch),
    )


def _endpoint_from_proto(message: pb.NixlEndpoint) -> NixlEndpoint:
    if not message.arena:
        raise TransferRefused(f"the NIXL endpoint of {message.agent} has no memory")
    return NixlEndpoint(
        message.agent,
        message.metadata,
        message.metadata_digest,
        tuple(_region_from_proto(region) for region in message.arena),
        _region_from_proto(message.scratch),
    )


def _region_to_proto(value: MemoryRegion) -> pb.MemoryRegion:
    return pb.MemoryRegion(
        address=value.address,
        bytes=value.bytes,
        device=value.device,
        device_index=value.device_index,
        offset=value.offset,
    )


def _region_from_proto(message: pb.MemoryRegion) -> MemoryRegion:
    return MemoryRegion(message.address, message.bytes, message.device, message.device_index, message.offset)
