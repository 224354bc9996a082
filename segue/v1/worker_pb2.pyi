from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerDescription(_message.Message):
    __slots__ = ("worker_id", "protocol_version", "role", "model_name", "fingerprint", "vocab_size", "max_len", "eos_token_ids", "page_tokens", "deterministic", "defaults", "snapshots")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    protocol_version: int
    role: str
    model_name: str
    fingerprint: str
    vocab_size: int
    max_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    page_tokens: int
    deterministic: bool
    defaults: SamplingDefaults
    snapshots: bool
    def __init__(self, worker_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., role: _Optional[str] = ..., model_name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., page_tokens: _Optional[int] = ..., deterministic: _Optional[bool] = ..., defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., snapshots: _Optional[bool] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("seed", "choice", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids")
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    seed: int
    choice: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    logprobs: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seed: _Optional[int] = ..., choice: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., logprobs: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("router_id", "request_id", "attempt", "prompt", "emitted", "sampling", "priority", "deadline_s", "extension", "cache_salt", "prefill_address", "score_from", "snapshot_id", "moved", "claimant", "snapshot_doubtful")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FROM_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_DOUBTFUL_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    request_id: str
    attempt: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    emitted: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    priority: int
    deadline_s: float
    extension: bytes
    cache_salt: str
    prefill_address: str
    score_from: int
    snapshot_id: str
    moved: Moved
    claimant: str
    snapshot_doubtful: bool
    def __init__(self, router_id: _Optional[str] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., emitted: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., priority: _Optional[int] = ..., deadline_s: _Optional[float] = ..., extension: _Optional[bytes] = ..., cache_salt: _Optional[str] = ..., prefill_address: _Optional[str] = ..., score_from: _Optional[int] = ..., snapshot_id: _Optional[str] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., claimant: _Optional[str] = ..., snapshot_doubtful: _Optional[bool] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("address", "handle", "attempt")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    address: str
    handle: int
    attempt: int
    def __init__(self, address: _Optional[str] = ..., handle: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class GenerateReply(_message.Message):
    __slots__ = ("handle", "restored")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    handle: int
    restored: bool
    def __init__(self, handle: _Optional[int] = ..., restored: _Optional[bool] = ...) -> None: ...

class RouterMessage(_message.Message):
    __slots__ = ("attach", "cancel", "finish", "heartbeat")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    cancel: Cancel
    finish: Finish
    heartbeat: Heartbeat
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("router_id", "protocol_version", "resume")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    protocol_version: int
    resume: _containers.RepeatedCompositeFieldContainer[Resume]
    def __init__(self, router_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., resume: _Optional[_Iterable[_Union[Resume, _Mapping]]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("handle", "attempt", "next_index", "next_position")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    handle: int
    attempt: int
    next_index: int
    next_position: int
    def __init__(self, handle: _Optional[int] = ..., attempt: _Optional[int] = ..., next_index: _Optional[int] = ..., next_position: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("handle", "attempt")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    attempt: int
    def __init__(self, handle: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("handle", "attempt", "kept")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    attempt: int
    kept: int
    def __init__(self, handle: _Optional[int] = ..., attempt: _Optional[int] = ..., kept: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "draining", "elsewhere", "ending")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    draining: bool
    elsewhere: bool
    ending: bool
    def __init__(self, sequence: _Optional[int] = ..., draining: _Optional[bool] = ..., elsewhere: _Optional[bool] = ..., ending: _Optional[bool] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("attached", "step", "heartbeat")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    step: Step
    heartbeat: Heartbeat
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("worker_id", "unknown")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    unknown: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker_id: _Optional[str] = ..., unknown: _Optional[_Iterable[int]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("number", "handle", "attempt", "index", "token_id", "logprob", "top_count", "top_token_id", "top_logprob", "finished", "scores")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    number: int
    handle: _containers.RepeatedScalarFieldContainer[int]
    attempt: _containers.RepeatedScalarFieldContainer[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    token_id: _containers.RepeatedScalarFieldContainer[int]
    logprob: _containers.RepeatedScalarFieldContainer[float]
    top_count: _containers.RepeatedScalarFieldContainer[int]
    top_token_id: _containers.RepeatedScalarFieldContainer[int]
    top_logprob: _containers.RepeatedScalarFieldContainer[float]
    finished: _containers.RepeatedCompositeFieldContainer[Finished]
    scores: _containers.RepeatedCompositeFieldContainer[PromptScores]
    def __init__(self, number: _Optional[int] = ..., handle: _Optional[_Iterable[int]] = ..., attempt: _Optional[_Iterable[int]] = ..., index: _Optional[_Iterable[int]] = ..., token_id: _Optional[_Iterable[int]] = ..., logprob: _Optional[_Iterable[float]] = ..., top_count: _Optional[_Iterable[int]] = ..., top_token_id: _Optional[_Iterable[int]] = ..., top_logprob: _Optional[_Iterable[float]] = ..., finished: _Optional[_Iterable[_Union[Finished, _Mapping]]] = ..., scores: _Optional[_Iterable[_Union[PromptScores, _Mapping]]] = ...) -> None: ...

class PromptScores(_message.Message):
    __slots__ = ("handle", "attempt", "first", "logprob", "top_count", "top_token_id", "top_logprob")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    handle: int
    attempt: int
    first: int
    logprob: _containers.RepeatedScalarFieldContainer[float]
    top_count: int
    top_token_id: _containers.RepeatedScalarFieldContainer[int]
    top_logprob: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, handle: _Optional[int] = ..., attempt: _Optional[int] = ..., first: _Optional[int] = ..., logprob: _Optional[_Iterable[float]] = ..., top_count: _Optional[int] = ..., top_token_id: _Optional[_Iterable[int]] = ..., top_logprob: _Optional[_Iterable[float]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("handle", "attempt", "reason", "usage", "error", "snapshot_id")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    handle: int
    attempt: int
    reason: str
    usage: Usage
    error: Error
    snapshot_id: str
    def __init__(self, handle: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ("router_id", "handle", "attempt", "copy", "served", "about", "parked", "snapshot_id")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    handle: int
    attempt: int
    copy: bool
    served: int
    about: bytes
    parked: bool
    snapshot_id: str
    def __init__(self, router_id: _Optional[str] = ..., handle: _Optional[int] = ..., attempt: _Optional[int] = ..., copy: _Optional[bool] = ..., served: _Optional[int] = ..., about: _Optional[bytes] = ..., parked: _Optional[bool] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class TakeSnapshotReply(_message.Message):
    __slots__ = ("snapshot_id", "computed", "bytes")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    computed: int
    bytes: int
    def __init__(self, snapshot_id: _Optional[str] = ..., computed: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSnapshotsReply(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotSummary]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[SnapshotSummary, _Mapping]]] = ...) -> None: ...

class SnapshotSummary(_message.Message):
    __slots__ = ("snapshot_id", "request_id", "kind", "created_s", "bytes", "computed", "tp_size", "claimed_by", "refused")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_BY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    request_id: str
    kind: str
    created_s: float
    bytes: int
    computed: int
    tp_size: int
    claimed_by: str
    refused: str
    def __init__(self, snapshot_id: _Optional[str] = ..., request_id: _Optional[str] = ..., kind: _Optional[str] = ..., created_s: _Optional[float] = ..., bytes: _Optional[int] = ..., computed: _Optional[int] = ..., tp_size: _Optional[int] = ..., claimed_by: _Optional[str] = ..., refused: _Optional[str] = ...) -> None: ...

class InspectSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id", "verify")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    verify: bool
    def __init__(self, snapshot_id: _Optional[str] = ..., verify: _Optional[bool] = ...) -> None: ...

class InspectSnapshotReply(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    def __init__(self, manifest: _Optional[bytes] = ...) -> None: ...

class DeleteSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class DeleteSnapshotReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PoolStatus(_message.Message):
    __slots__ = ("component", "capacity", "free", "held", "cached", "reserved", "quarantined", "sink", "unit_bytes")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    UNIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    component: str
    capacity: int
    free: int
    held: int
    cached: int
    reserved: int
    quarantined: int
    sink: int
    unit_bytes: int
    def __init__(self, component: _Optional[str] = ..., capacity: _Optional[int] = ..., free: _Optional[int] = ..., held: _Optional[int] = ..., cached: _Optional[int] = ..., reserved: _Optional[int] = ..., quarantined: _Optional[int] = ..., sink: _Optional[int] = ..., unit_bytes: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("tp_size", "ready", "running", "waiting", "steps", "generated_tokens", "prefill_tokens", "pools", "unpromised", "promised", "transfers", "cache", "retraction", "replay", "snapshots", "worker_id")
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    UNPROMISED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    RETRACTION_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    tp_size: int
    ready: bool
    running: int
    waiting: int
    steps: int
    generated_tokens: int
    prefill_tokens: int
    pools: _containers.RepeatedCompositeFieldContainer[PoolStatus]
    unpromised: int
    promised: int
    transfers: Transfers
    cache: Cache
    retraction: Retraction
    replay: Replay
    snapshots: Snapshots
    worker_id: str
    def __init__(self, tp_size: _Optional[int] = ..., ready: _Optional[bool] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., steps: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[PoolStatus, _Mapping]]] = ..., unpromised: _Optional[int] = ..., promised: _Optional[int] = ..., transfers: _Optional[_Union[Transfers, _Mapping]] = ..., cache: _Optional[_Union[Cache, _Mapping]] = ..., retraction: _Optional[_Union[Retraction, _Mapping]] = ..., replay: _Optional[_Union[Replay, _Mapping]] = ..., snapshots: _Optional[_Union[Snapshots, _Mapping]] = ..., worker_id: _Optional[str] = ...) -> None: ...

class Snapshots(_message.Message):
    __slots__ = ("exported", "copied", "failed", "bytes")
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    exported: int
    copied: int
    failed: int
    bytes: int
    def __init__(self, exported: _Optional[int] = ..., copied: _Optional[int] = ..., failed: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Replay(_message.Message):
    __slots__ = ("steps", "folds_full", "folds_checkpoint", "folds_read", "pending")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FOLDS_FULL_FIELD_NUMBER: _ClassVar[int]
    FOLDS_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FOLDS_READ_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    steps: int
    folds_full: int
    folds_checkpoint: int
    folds_read: int
    pending: int
    def __init__(self, steps: _Optional[int] = ..., folds_full: _Optional[int] = ..., folds_checkpoint: _Optional[int] = ..., folds_read: _Optional[int] = ..., pending: _Optional[int] = ...) -> None: ...

class Retraction(_message.Message):
    __slots__ = ("by_memory", "by_test", "requests", "resumed", "recomputed", "mismatched", "waiting", "saved_bytes", "restored_bytes", "copy_s", "away_s", "resumed_extend_tokens", "recomputed_tokens", "host", "restored")
    BY_MEMORY_FIELD_NUMBER: _ClassVar[int]
    BY_TEST_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    MISMATCHED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SAVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESTORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_S_FIELD_NUMBER: _ClassVar[int]
    AWAY_S_FIELD_NUMBER: _ClassVar[int]
    RESUMED_EXTEND_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    by_memory: int
    by_test: int
    requests: int
    resumed: int
    recomputed: int
    mismatched: int
    waiting: int
    saved_bytes: int
    restored_bytes: int
    copy_s: float
    away_s: float
    resumed_extend_tokens: int
    recomputed_tokens: int
    host: _containers.RepeatedCompositeFieldContainer[HostPool]
    restored: int
    def __init__(self, by_memory: _Optional[int] = ..., by_test: _Optional[int] = ..., requests: _Optional[int] = ..., resumed: _Optional[int] = ..., recomputed: _Optional[int] = ..., mismatched: _Optional[int] = ..., waiting: _Optional[int] = ..., saved_bytes: _Optional[int] = ..., restored_bytes: _Optional[int] = ..., copy_s: _Optional[float] = ..., away_s: _Optional[float] = ..., resumed_extend_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., host: _Optional[_Iterable[_Union[HostPool, _Mapping]]] = ..., restored: _Optional[int] = ...) -> None: ...

class HostPool(_message.Message):
    __slots__ = ("name", "capacity", "free", "held")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity: int
    free: int
    held: int
    def __init__(self, name: _Optional[str] = ..., capacity: _Optional[int] = ..., free: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...

class Cache(_message.Message):
    __slots__ = ("looked_up_tokens", "hits", "checkpoints_taken", "checkpoints_duplicate", "checkpoints_skipped", "checkpoints_evicted", "checkpoints_resumed", "floors_dropped", "floor_tokens", "floor_tokens_max", "floor_tokens_decoding", "decode_rows", "prompts")
    LOOKED_UP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_EVICTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_RESUMED_FIELD_NUMBER: _ClassVar[int]
    FLOORS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    FLOOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FLOOR_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    FLOOR_TOKENS_DECODING_FIELD_NUMBER: _ClassVar[int]
    DECODE_ROWS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    looked_up_tokens: int
    hits: _containers.RepeatedCompositeFieldContainer[CacheHits]
    checkpoints_taken: int
    checkpoints_duplicate: int
    checkpoints_skipped: int
    checkpoints_evicted: int
    checkpoints_resumed: int
    floors_dropped: int
    floor_tokens: int
    floor_tokens_max: int
    floor_tokens_decoding: int
    decode_rows: int
    prompts: _containers.RepeatedCompositeFieldContainer[ChosenPrompts]
    def __init__(self, looked_up_tokens: _Optional[int] = ..., hits: _Optional[_Iterable[_Union[CacheHits, _Mapping]]] = ..., checkpoints_taken: _Optional[int] = ..., checkpoints_duplicate: _Optional[int] = ..., checkpoints_skipped: _Optional[int] = ..., checkpoints_evicted: _Optional[int] = ..., checkpoints_resumed: _Optional[int] = ..., floors_dropped: _Optional[int] = ..., floor_tokens: _Optional[int] = ..., floor_tokens_max: _Optional[int] = ..., floor_tokens_decoding: _Optional[int] = ..., decode_rows: _Optional[int] = ..., prompts: _Optional[_Iterable[_Union[ChosenPrompts, _Mapping]]] = ...) -> None: ...

class ChosenPrompts(_message.Message):
    __slots__ = ("computed_by", "reason", "count")
    COMPUTED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    computed_by: str
    reason: str
    count: int
    def __init__(self, computed_by: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class CacheHits(_message.Message):
    __slots__ = ("limited_by", "tokens")
    LIMITED_BY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    limited_by: str
    tokens: int
    def __init__(self, limited_by: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class Transfers(_message.Message):
    __slots__ = ("count", "latency_s", "bytes", "speed_gb_s", "moved_in", "moved_out", "moved_lost")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SPEED_GB_S_FIELD_NUMBER: _ClassVar[int]
    MOVED_IN_FIELD_NUMBER: _ClassVar[int]
    MOVED_OUT_FIELD_NUMBER: _ClassVar[int]
    MOVED_LOST_FIELD_NUMBER: _ClassVar[int]
    count: int
    latency_s: float
    bytes: int
    speed_gb_s: float
    moved_in: int
    moved_out: int
    moved_lost: int
    def __init__(self, count: _Optional[int] = ..., latency_s: _Optional[float] = ..., bytes: _Optional[int] = ..., speed_gb_s: _Optional[float] = ..., moved_in: _Optional[int] = ..., moved_out: _Optional[int] = ..., moved_lost: _Optional[int] = ...) -> None: ...
