"""Bodies of the unary calls, proto to value and back; decides nothing."""

import numpy as np

from segue.batch.sampling import SamplingDefaults, SamplingParams
from segue.batch.submission import Moved
from segue.errors import InvalidRequest
from segue.ids import Handle, RequestId, RouterId, WorkerId
from segue.state.snapshot.names import is_id
from segue.tokens import token_array
from segue.v1 import worker_pb2 as pb
from segue.wire.values import GenerateSpec, WorkerDescription


def sampling_to_proto(params: SamplingParams) -> pb.Sampling:
    return pb.Sampling(
        seed=params.seed,
        choice=params.choice,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=[pb.LogitBias(token_id=token, bias=bias) for token, bias in params.logit_bias],
        logprobs=params.logprobs,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
    )


def sampling_from_proto(message: pb.Sampling) -> SamplingParams:
    """Raises InvalidRequest when a value is out of range."""
    return SamplingParams(
        seed=message.seed,
        choice=message.choice,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple((entry.token_id, entry.bias) for entry in message.logit_bias),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
    )


def generate_to_proto(spec: GenerateSpec) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        router_id=spec.router_id,
        request_id=spec.request_id,
        attempt=spec.attempt,
        prompt=spec.prompt,
        emitted=spec.emitted,
        sampling=sampling_to_proto(spec.sampling),
        priority=spec.priority,
        deadline_s=spec.deadline_s,
        extension=spec.extension,
        cache_salt=spec.cache_salt,
        prefill_address=spec.prefill_address,
        score_from=spec.score_from,
        snapshot_id=spec.snapshot_id,
        claimant=spec.claimant,
        snapshot_doubtful=spec.snapshot_doubtful,
        moved=None
        if (moved := spec.moved) is None
        else pb.Moved(address=moved.address, handle=moved.handle, attempt=moved.attempt),
    )


def generate_from_proto(message: pb.GenerateRequest) -> GenerateSpec:
    """Raises InvalidRequest when a sampling value is out of range, or the claimant is no name."""
    if message.claimant and not is_id(message.claimant):
        raise InvalidRequest(f"claimant is {message.claimant!r:.80}, it must be 32 hexadecimal digits")
    return GenerateSpec(
        router_id=RouterId(message.router_id),
        request_id=RequestId(message.request_id),
        attempt=message.attempt,
        # Read as a whole: a long prompt is not walked through.
        prompt=token_array(np.asarray(message.prompt, dtype=np.uint32)),
        sampling=sampling_from_proto(message.sampling),
        emitted=tuple(message.emitted),
        priority=message.priority,
        deadline_s=message.deadline_s if message.HasField("deadline_s") else None,
        extension=message.extension,
        cache_salt=message.cache_salt,
        prefill_address=message.prefill_address,
        score_from=message.score_from if message.HasField("score_from") else None,
        snapshot_id=message.snapshot_id,
        claimant=message.claimant,
        snapshot_doubtful=message.snapshot_doubtful,
        moved=Moved(message.moved.address, Handle(message.moved.handle), message.moved.attempt)
        if message.HasField("moved")
        else None,
    )


def description_to_proto(value: WorkerDescription) -> pb.WorkerDescription:
    return pb.WorkerDescription(
        worker_id=value.worker_id,
        protocol_version=value.protocol_version,
        role=value.role,
        model_name=value.model_name,
        fingerprint=value.fingerprint,
        vocab_size=value.vocab_size,
        max_len=value.max_len,
        eos_token_ids=value.eos_token_ids,
        page_tokens=value.page_tokens,
        deterministic=value.deterministic,
        defaults=pb.SamplingDefaults(
            temperature=value.defaults.temperature,
            top_p=value.defaults.top_p,
            top_k=value.defaults.top_k,
            min_p=value.defaults.min_p,
            repetition_penalty=value.defaults.repetition_penalty,
        ),
        snapshots=value.snapshots,
    )


def description_from_proto(message: pb.WorkerDescription) -> WorkerDescription:
    return WorkerDescription(
        worker_id=WorkerId(message.worker_id),
        protocol_version=message.protocol_version,
        role=message.role,
        model_name=message.model_name,
        fingerprint=message.fingerprint,
        vocab_size=message.vocab_size,
        max_len=message.max_len,
        eos_token_ids=tuple(message.eos_token_ids),
        page_tokens=message.page_tokens,
        deterministic=message.deterministic,
        defaults=SamplingDefaults(
            temperature=message.defaults.temperature,
            top_p=message.defaults.top_p,
            top_k=message.defaults.top_k,
            min_p=message.defaults.min_p,
            repetition_penalty=message.defaults.repetition_penalty,
        ),
        snapshots=message.snapshots,
    )
