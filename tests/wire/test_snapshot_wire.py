"""What the snapshot calls say comes back as it was; sampling parameters survive a manifest, or are refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.batch.sampling import SamplingParams
from segue.errors import InvalidRequest, SnapshotManifestInvalid
from segue.ids import Handle, RouterId
from segue.v1 import worker_pb2 as pb
from segue.wire import (
    SnapshotSummary,
    SnapshotTaken,
    TakeSnapshot,
    sampling_from_json,
    sampling_to_json,
    snapshot_taken_from_proto,
    snapshot_taken_to_proto,
    summaries_from_proto,
    summaries_to_proto,
    take_snapshot_from_proto,
    take_snapshot_to_proto,
)
from tests.wire.test_wire import samplings

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
asked = st.builds(
    TakeSnapshot,
    router_id=st.text(max_size=9).map(RouterId),
    handle=uint32.map(Handle),
    attempt=uint32,
    copy=st.booleans(),
    served=uint32,
    about=st.binary(min_size=1, max_size=40),
    snapshot_id=st.uuids().map(lambda one: one.hex),
)
positive = st.integers(1, 2**32 - 1)
text_or_none = st.text(min_size=1, max_size=9) | st.none()
taken = st.builds(SnapshotTaken, st.text(max_size=9), uint32, uint64)
stored = st.builds(
    SnapshotSummary,
    snapshot_id=st.text(max_size=9),
    bytes=uint64,
    request_id=text_or_none,
    kind=st.sampled_from(["export", "parked", "copy", "periodic", None]),
    created_s=st.floats(1, 1e11) | st.none(),
    computed=positive | st.none(),
    tp_size=positive | st.none(),
    claimed_by=text_or_none,
    refused=text_or_none,
)


@given(asked, taken, st.lists(stored, max_size=3).map(tuple))
def test_what_the_calls_say_survives_the_wire(
    asked: TakeSnapshot, taken: SnapshotTaken, stored: tuple[SnapshotSummary, ...]
) -> None:
    request = take_snapshot_to_proto(asked).SerializeToString()
    assert take_snapshot_from_proto(pb.TakeSnapshotRequest.FromString(request)) == asked
    reply = snapshot_taken_to_proto(taken).SerializeToString()
    assert snapshot_taken_from_proto(pb.TakeSnapshotReply.FromString(reply)) == taken
    listed = summaries_to_proto(stored).SerializeToString()
    assert summaries_from_proto(pb.ListSnapshotsReply.FromString(listed)) == stored


def test_a_call_that_lost_what_the_request_is_about_is_refused() -> None:
    cut = pb.TakeSnapshotRequest(router_id="r", handle=1, attempt=0, copy=True, served=3)
    with pytest.raises(InvalidRequest, match="damaged"):
        take_snapshot_from_proto(cut)


@given(samplings)
def test_sampling_parameters_survive_a_manifest(params: SamplingParams) -> None:
    fields = sampling_to_json(params)
    read = json.loads(json.dumps(fields))
    assert read == fields
    assert sampling_from_json(read) == params


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 1.0),
        ("seed", -1),
        ("choice", True),
        ("temperature", "1"),
        ("temperature", 10**400),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_k", None),
        ("max_tokens", 2**40),
        ("min_tokens", 99),
        ("ignore_eos", 1),
        ("logprobs", 21),
        ("logprobs", "2"),
        ("logit_bias", {}),
        ("logit_bias", [[1]]),
        ("logit_bias", [[-1, 0.5]]),
        ("logit_bias", [[1, None]]),
        ("stop_token_ids", [2**32]),
        ("stop_token_ids", "12"),
        ("salt", 1),
    ],
)
def test_sampling_parameters_that_make_no_sense_are_refused_by_name(name: str, value: object) -> None:
    fields = sampling_to_json(SamplingParams(seed=1))
    with pytest.raises(SnapshotManifestInvalid, match=name):
        sampling_from_json({**fields, name: value})


@pytest.mark.parametrize("name", sorted(sampling_to_json(SamplingParams(seed=1))))
def test_no_sampling_parameter_may_be_missing(name: str) -> None:
    fields = dict(sampling_to_json(SamplingParams(seed=1)))
    del fields[name]
    with pytest.raises(SnapshotManifestInvalid, match=f"no '{name}'"):
        sampling_from_json(fields)
