"""Everything that crosses the wire comes back as it was; what makes no sense is refused by its own error class."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingDefaults, SamplingParams
from segue.errors import ContextTooLong, InvalidRequest, PoolExhausted, ServingError, WorkerUnavailable, error_kinds
from segue.ids import Handle, RequestId, RouterId, WorkerId
from segue.state.pool import PoolCounts
from segue.tokens import token_array
from segue.v1 import worker_pb2 as pb
from segue.wire import (
    Attach,
    Attached,
    CacheFigures,
    CacheHits,
    Cancel,
    ChosenPrompts,
    Ended,
    Finish,
    GenerateSpec,
    Heartbeat,
    PoolStatus,
    PromptScores,
    ReplayFigures,
    Resume,
    RetractionFigures,
    RouterMessage,
    Scores,
    SnapshotFigures,
    StepNews,
    Usage,
    WorkerDescription,
    WorkerMessage,
    WorkerStatus,
    description_from_proto,
    description_to_proto,
    error_from_code,
    error_to_status,
    generate_from_proto,
    generate_to_proto,
    router_message_from_proto,
    router_message_to_proto,
    sampling_from_proto,
    sampling_to_proto,
    status_from_proto,
    status_to_proto,
    worker_message_from_proto,
    worker_message_to_proto,
)

uint32 = st.integers(0, 2**32 - 1)
float32 = st.floats(width=32, allow_nan=False)
samplings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**63 - 1),
    choice=st.integers(0, 2**16 - 1),
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 2**31 - 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 10),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.lists(st.tuples(uint32, st.floats(-100, 100, width=32)), max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
    max_tokens=st.integers(9, 2**31 - 1),
    min_tokens=st.integers(0, 9),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(uint32, max_size=3).map(tuple),
)


@given(samplings)
def test_sampling_parameters_survive_the_wire(params: SamplingParams) -> None:
    data = sampling_to_proto(params).SerializeToString()
    assert sampling_from_proto(pb.Sampling.FromString(data)) == params


@given(
    samplings,
    st.lists(uint32),
    st.lists(uint32),
    st.none() | st.floats(0, 1e6),
    st.binary(),
    st.text(),
    st.none() | uint32,
)
def test_a_generate_request_survives_the_wire(
    params: SamplingParams,
    prompt: list[int],
    emitted: list[int],
    deadline: float | None,
    extension: bytes,
    salt: str,
    score_from: int | None,
) -> None:
    spec = GenerateSpec(
        router_id=RouterId("r"),
        request_id=RequestId("q"),
        attempt=3,
        prompt=token_array(prompt),
        emitted=tuple(emitted),
        sampling=params,
        priority=-2,
        deadline_s=deadline,
        extension=extension,
        cache_salt=salt,
        score_from=score_from,
    )
    data = generate_to_proto(spec).SerializeToString()
    assert generate_from_proto(pb.GenerateRequest.FromString(data)) == spec


def test_a_sampling_value_out_of_range_is_refused_by_name() -> None:
    message = sampling_to_proto(SamplingParams(seed=1))
    message.top_p = 1.5
    with pytest.raises(InvalidRequest, match="top_p"):
        sampling_from_proto(message)


@pytest.mark.parametrize(
    "message",
    [
        Attach(RouterId("r"), (Resume(Handle(4), 1, 17), Resume(Handle(5), 1, 0, 9))),
        Cancel(Handle(1), 2),
        Finish(Handle(1), 2, 3),
        Heartbeat(9, elsewhere=True),
    ],
)
def test_router_messages_survive_the_wire(message: RouterMessage) -> None:
    data = router_message_to_proto(message).SerializeToString()
    assert router_message_from_proto(pb.RouterMessage.FromString(data)) == message


@pytest.mark.parametrize("message", [Attached(WorkerId("w"), (Handle(3),)), Heartbeat(2, draining=True)])
def test_worker_messages_survive_the_wire(message: WorkerMessage) -> None:
    data = worker_message_to_proto(message).SerializeToString()
    assert worker_message_from_proto(pb.WorkerMessage.FromString(data)) == message


entries = st.tuples(
    uint32, uint32, uint32, uint32, float32, st.lists(st.tuples(uint32, float32), max_size=3).map(tuple)
)


@given(st.lists(entries, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_a_step_survives_the_wire_with_and_without_logprobs(
    rows: list[tuple[int, int, int, int, float, tuple[tuple[int, float], ...]]], logprobs: bool, tops: bool
) -> None:
    handles, attempts, indices, token_ids, chosen, top = zip(*rows, strict=True)
    ended = [Ended(Handle(5), 1, FinishReason.STOP, Usage(7, 8, 9))]
    news = StepNews(1, handles, attempts, indices, token_ids, chosen if logprobs else (), top if tops else (), ended)
    back = worker_message_from_proto(pb.WorkerMessage.FromString(worker_message_to_proto(news).SerializeToString()))
    assert isinstance(back, StepNews)
    assert list(back.handles) == list(handles)
    assert list(back.indices) == list(indices)
    assert list(back.token_ids) == list(token_ids)
    assert list(back.logprobs) == (list(chosen) if logprobs else [])
    assert list(back.tops) == (list(top) if tops else [])
    assert list(back.ended) == ended


@given(st.lists(float32, max_size=5), st.integers(0, 3), st.data())
def test_scores_of_a_prompt_survive_the_wire(logprobs: list[float], width: int, data: st.DataObject) -> None:
    top = st.tuples(*[st.tuples(uint32, float32)] * width)
    tops = [data.draw(top) for _ in logprobs]
    news = StepNews(1, scores=[PromptScores(Handle(5), 1, Scores(7, logprobs, tops))])
    back = worker_message_from_proto(pb.WorkerMessage.FromString(worker_message_to_proto(news).SerializeToString()))
    assert back == StepNews(1, [], [], [], [], [], (), [], news.scores)


def test_an_error_inside_a_step_keeps_its_class() -> None:
    news = StepNews(1, ended=[Ended(Handle(5), 1, FinishReason.ERROR, Usage(), ContextTooLong("too long"))])
    back = worker_message_from_proto(worker_message_to_proto(news))
    assert isinstance(back, StepNews)
    assert isinstance(back.ended[0].error, ContextTooLong)
    assert back.ended[0].error.message == "too long"


@pytest.mark.parametrize(
    "step",
    [
        pb.Step(handle=[1, 2], attempt=[1], index=[0, 0], token_id=[1, 1]),
        pb.Step(handle=[1], attempt=[1], index=[0], token_id=[1], logprob=[0.0, 0.0]),
        pb.Step(handle=[1], attempt=[1], index=[0], token_id=[1], top_count=[2], top_token_id=[3], top_logprob=[0.0]),
        pb.Step(finished=[pb.Finished(handle=1, attempt=1, reason="bored")]),
        pb.Step(scores=[pb.PromptScores(handle=1, attempt=1, first=1, logprob=[0.0], top_count=1)]),
        pb.Step(scores=[pb.PromptScores(handle=1, attempt=1, first=1, top_token_id=[3], top_logprob=[0.0])]),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(step: pb.Step) -> None:
    with pytest.raises(WorkerUnavailable):
        worker_message_from_proto(pb.WorkerMessage(step=step))


def test_an_empty_session_message_is_refused_on_both_sides() -> None:
    with pytest.raises(InvalidRequest):
        router_message_from_proto(pb.RouterMessage())
    with pytest.raises(WorkerUnavailable):
        worker_message_from_proto(pb.WorkerMessage())


def test_description_and_status_survive_the_wire() -> None:
    description = WorkerDescription(
        worker_id=WorkerId("w"),
        role="both",
        model_name="m",
        fingerprint="f",
        vocab_size=2048,
        max_len=4096,
        eos_token_ids=(4,),
        page_tokens=64,
        deterministic=True,
        snapshots=True,
        defaults=SamplingDefaults(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1),
    )
    assert description_from_proto(description_to_proto(description)) == description
    pool = PoolStatus(
        component="full", capacity=9, free=1, held=2, cached=3, reserved=1, quarantined=1, sink=1, unit_bytes=4096
    )
    cache = CacheFigures(
        looked_up_tokens=1000,
        hits=(CacheHits("recurrent", 600), CacheHits(None, 30)),
        checkpoints_taken=2,
        checkpoints_duplicate=3,
        checkpoints_skipped=4,
        checkpoints_evicted=5,
        checkpoints_resumed=6,
        floors_dropped=7,
        floor_tokens=8,
        floor_tokens_max=9,
        floor_tokens_decoding=10,
        decode_rows=11,
        prompts=(ChosenPrompts("decode", "short", 12), ChosenPrompts("prefill", "long", 13)),
    )
    retraction = RetractionFigures(
        by_memory=20,
        by_test=21,
        requests=22,
        resumed=23,
        recomputed=24,
        mismatched=25,
        waiting=26,
        saved_bytes=27,
        restored_bytes=28,
        copy_s=0.5,
        away_s=1.5,
        resumed_extend_tokens=29,
        recomputed_tokens=30,
        restored=31,
        host=(PoolCounts("host_full", 10, 6, 3, sink=1), PoolCounts("host_bytes", 64, 32, 32, sink=0)),
    )
    status = WorkerStatus(
        worker_id=WorkerId("w"),
        ready=True,
        running=1,
        waiting=2,
        steps=3,
        generated_tokens=4,
        prefill_tokens=5,
        tp_size=4,
        pools=(pool,),
        cache=cache,
        retraction=retraction,
        replay=ReplayFigures(40, 41, 42, 43, 44),
        snapshots=SnapshotFigures(50, 51, 52, 53),
    )
    assert status_from_proto(status_to_proto(status)) == status


def test_what_is_never_empty_is_last_in_a_status() -> None:
    """So that one that was cut does not look like one of zeros."""
    fields = pb.WorkerStatus.DESCRIPTOR.fields_by_name
    assert max(fields, key=lambda name: fields[name].number) == "worker_id"


def test_requests_whose_state_is_elsewhere_are_live() -> None:
    status = WorkerStatus(
        worker_id=WorkerId("w"),
        ready=True,
        running=2,
        waiting=3,
        steps=0,
        generated_tokens=0,
        prefill_tokens=0,
        unpromised=1,
        promised=4,
        retraction=RetractionFigures(waiting=5),
    )
    assert status.live_count == 14


@pytest.mark.parametrize("code", sorted(error_kinds()))
def test_every_error_class_has_a_grpc_status_and_survives_by_its_code(code: str) -> None:
    cls = error_kinds()[code]
    error = PoolExhausted("full", 2, 1) if cls is PoolExhausted else cls("what happened", param="p")
    status, details = error_to_status(error)
    assert status.name == error.kind.grpc
    back = error_from_code(code, details, error.param)
    assert isinstance(back, WorkerUnavailable if cls is PoolExhausted else cls)
    assert back.message == error.message


def test_the_code_of_a_newer_peer_is_a_plain_error() -> None:
    assert type(error_from_code("from_the_future", "hm")) is ServingError
