from segue.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Introduction(_message.Message):
    __slots__ = ("worker_id", "protocol_version", "fingerprint", "tp_size", "arena", "nixl", "process")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    NIXL_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    protocol_version: int
    fingerprint: _containers.ScalarMap[str, str]
    tp_size: int
    arena: Arena
    nixl: NixlEndpoint
    process: ProcessIdentity
    def __init__(self, worker_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., tp_size: _Optional[int] = ..., arena: _Optional[_Union[Arena, _Mapping]] = ..., nixl: _Optional[_Union[NixlEndpoint, _Mapping]] = ..., process: _Optional[_Union[ProcessIdentity, _Mapping]] = ...) -> None: ...

class Arena(_message.Message):
    __slots__ = ("bytes", "parts")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    parts: _containers.RepeatedCompositeFieldContainer[ArenaPart]
    def __init__(self, bytes: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[ArenaPart, _Mapping]]] = ...) -> None: ...

class ArenaPart(_message.Message):
    __slots__ = ("component", "base", "unit_bytes", "units", "rank")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    UNIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    component: str
    base: int
    unit_bytes: int
    units: int
    rank: int
    def __init__(self, component: _Optional[str] = ..., base: _Optional[int] = ..., unit_bytes: _Optional[int] = ..., units: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class ProcessIdentity(_message.Message):
    __slots__ = ("boot", "pid_namespace", "pid", "start_ticks", "net_namespace", "time_namespace")
    BOOT_FIELD_NUMBER: _ClassVar[int]
    PID_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    NET_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TIME_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    boot: str
    pid_namespace: int
    pid: int
    start_ticks: int
    net_namespace: int
    time_namespace: int
    def __init__(self, boot: _Optional[str] = ..., pid_namespace: _Optional[int] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., net_namespace: _Optional[int] = ..., time_namespace: _Optional[int] = ...) -> None: ...

class ProcessLife(_message.Message):
    __slots__ = ("process", "life")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    process: ProcessIdentity
    life: str
    def __init__(self, process: _Optional[_Union[ProcessIdentity, _Mapping]] = ..., life: _Optional[str] = ...) -> None: ...

class NixlEndpoint(_message.Message):
    __slots__ = ("agent", "metadata", "metadata_digest", "arena", "scratch")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METADATA_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_FIELD_NUMBER: _ClassVar[int]
    agent: str
    metadata: bytes
    metadata_digest: bytes
    arena: _containers.RepeatedCompositeFieldContainer[MemoryRegion]
    scratch: MemoryRegion
    def __init__(self, agent: _Optional[str] = ..., metadata: _Optional[bytes] = ..., metadata_digest: _Optional[bytes] = ..., arena: _Optional[_Iterable[_Union[MemoryRegion, _Mapping]]] = ..., scratch: _Optional[_Union[MemoryRegion, _Mapping]] = ...) -> None: ...

class MemoryRegion(_message.Message):
    __slots__ = ("address", "bytes", "device", "device_index", "offset")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    address: int
    bytes: int
    device: str
    device_index: int
    offset: int
    def __init__(self, address: _Optional[int] = ..., bytes: _Optional[int] = ..., device: _Optional[str] = ..., device_index: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class SelfTestRequest(_message.Message):
    __slots__ = ("worker_id", "offset", "bytes", "seed")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    offset: int
    bytes: int
    seed: bytes
    def __init__(self, worker_id: _Optional[str] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ..., seed: _Optional[bytes] = ...) -> None: ...

class SelfTestReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TicketMessage(_message.Message):
    __slots__ = ("worker_id", "ticket")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    ticket: Ticket
    def __init__(self, worker_id: _Optional[str] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("request_id", "reservation", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reservation: int
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., reservation: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class ReceiverMessage(_message.Message):
    __slots__ = ("start", "grant", "renewed", "withdraw", "heartbeat")
    START_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    start: Start
    grant: Grant
    renewed: Renewed
    withdraw: Withdraw
    heartbeat: _worker_pb2.Heartbeat
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., heartbeat: _Optional[_Union[_worker_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("worker_id", "transport", "held_tokens", "request")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    HELD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    transport: str
    held_tokens: int
    request: _worker_pb2.GenerateRequest
    def __init__(self, worker_id: _Optional[str] = ..., transport: _Optional[str] = ..., held_tokens: _Optional[int] = ..., request: _Optional[_Union[_worker_pb2.GenerateRequest, _Mapping]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("ticket", "ask", "prompt_tokens", "held_tokens", "checkpoint", "plan_digest", "lease_s", "rows")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HELD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    ask: int
    prompt_tokens: int
    held_tokens: int
    checkpoint: int
    plan_digest: str
    lease_s: float
    rows: _containers.RepeatedCompositeFieldContainer[UnitRow]
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., ask: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., held_tokens: _Optional[int] = ..., checkpoint: _Optional[int] = ..., plan_digest: _Optional[str] = ..., lease_s: _Optional[float] = ..., rows: _Optional[_Iterable[_Union[UnitRow, _Mapping]]] = ...) -> None: ...

class UnitRow(_message.Message):
    __slots__ = ("part", "component", "first", "units")
    PART_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    part: str
    component: str
    first: int
    units: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, part: _Optional[str] = ..., component: _Optional[str] = ..., first: _Optional[int] = ..., units: _Optional[_Iterable[int]] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("ticket", "sequence")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    sequence: int
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., sequence: _Optional[int] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class SenderMessage(_message.Message):
    __slots__ = ("ask", "progress", "blocks", "finished", "checkpoint", "settled", "failed", "heartbeat")
    ASK_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ask: Ask
    progress: Progress
    blocks: Blocks
    finished: HandoffFinished
    checkpoint: CheckpointPushed
    settled: Settled
    failed: Failed
    heartbeat: _worker_pb2.Heartbeat
    def __init__(self, ask: _Optional[_Union[Ask, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ..., finished: _Optional[_Union[HandoffFinished, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointPushed, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., heartbeat: _Optional[_Union[_worker_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("number", "prompt_tokens", "checkpoint")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    number: int
    prompt_tokens: int
    checkpoint: int
    def __init__(self, number: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., checkpoint: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("ticket", "sequence", "computed")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    sequence: int
    computed: int
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., sequence: _Optional[int] = ..., computed: _Optional[int] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("ticket", "offsets", "lengths", "payload", "crc32")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    offsets: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    payload: bytes
    crc32: int
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., offsets: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., payload: _Optional[bytes] = ..., crc32: _Optional[int] = ...) -> None: ...

class HandoffFinished(_message.Message):
    __slots__ = ("ticket", "token_id", "logprob", "top_token_id", "top_logprob", "digests", "reason", "usage")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    token_id: int
    logprob: float
    top_token_id: _containers.RepeatedScalarFieldContainer[int]
    top_logprob: _containers.RepeatedScalarFieldContainer[float]
    digests: _containers.RepeatedCompositeFieldContainer[StateDigest]
    reason: str
    usage: _worker_pb2.Usage
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_token_id: _Optional[_Iterable[int]] = ..., top_logprob: _Optional[_Iterable[float]] = ..., digests: _Optional[_Iterable[_Union[StateDigest, _Mapping]]] = ..., reason: _Optional[str] = ..., usage: _Optional[_Union[_worker_pb2.Usage, _Mapping]] = ...) -> None: ...

class StateDigest(_message.Message):
    __slots__ = ("component", "value")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    component: str
    value: str
    def __init__(self, component: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class CheckpointPushed(_message.Message):
    __slots__ = ("ticket", "depth", "digests")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    depth: int
    digests: _containers.RepeatedCompositeFieldContainer[StateDigest]
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., depth: _Optional[int] = ..., digests: _Optional[_Iterable[_Union[StateDigest, _Mapping]]] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("error", "param")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    error: _worker_pb2.Error
    param: str
    def __init__(self, error: _Optional[_Union[_worker_pb2.Error, _Mapping]] = ..., param: _Optional[str] = ...) -> None: ...
