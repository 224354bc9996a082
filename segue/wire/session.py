"""Messages of the multiplexed session, proto to value and back; decides nothing."""

from collections.abc import Sequence
from itertools import accumulate

from segue.batch.request import FinishReason
from segue.errors import InvalidRequest, WorkerUnavailable
from segue.ids import Handle, RouterId, WorkerId
from segue.v1 import worker_pb2 as pb
from segue.wire.faults import error_from_code
from segue.wire.values import (
    Attach,
    Attached,
    Cancel,
    Ended,
    Finish,
    Heartbeat,
    PromptScores,
    Resume,
    RouterMessage,
    Scores,
    StepNews,
    Top,
    Usage,
    WorkerMessage,
)

_REASONS = {reason.value: reason for reason in FinishReason}


def router_message_to_proto(value: RouterMessage) -> pb.RouterMessage:
    match value:
        case Attach():
            resume = [
                pb.Resume(handle=r.handle, attempt=r.attempt, next_index=r.next_index, next_position=r.next_position)
                for r in value.resume
            ]
            return pb.RouterMessage(
                attach=pb.Attach(router_id=value.router_id, protocol_version=value.protocol_version, resume=resume)
            )
        case Cancel():
            return pb.RouterMessage(cancel=pb.Cancel(handle=value.handle, attempt=value.attempt))
        case Finish():
            return pb.RouterMessage(finish=pb.Finish(handle=value.handle, attempt=value.attempt, kept=value.kept))
        case Heartbeat():
            return pb.RouterMessage(heartbeat=_heartbeat_to_proto(value))


def router_message_from_proto(message: pb.RouterMessage) -> RouterMessage:
    """Raises InvalidRequest for a kind that this build does not know."""
    match message.WhichOneof("kind"):
        case "attach":
            attach = message.attach
            resume = tuple(Resume(Handle(r.handle), r.attempt, r.next_index, r.next_position) for r in attach.resume)
            return Attach(RouterId(attach.router_id), resume, attach.protocol_version)
        case "cancel":
            return Cancel(Handle(message.cancel.handle), message.cancel.attempt)
        case "finish":
            return Finish(Handle(message.finish.handle), message.finish.attempt, message.finish.kept)
        case "heartbeat":
            return _heartbeat_from_proto(message.heartbeat)
        case kind:
            raise InvalidRequest(f"a router sent a session message of kind {kind}; is it a newer build?")


def worker_message_to_proto(value: WorkerMessage) -> pb.WorkerMessage:
    match value:
        case StepNews():
            return pb.WorkerMessage(step=_step_to_proto(value))
        case Attached():
            return pb.WorkerMessage(attached=pb.Attached(worker_id=value.worker_id, unknown=value.unknown))
        case Heartbeat():
            return pb.WorkerMessage(heartbeat=_heartbeat_to_proto(value))


def worker_message_from_proto(message: pb.WorkerMessage) -> WorkerMessage:
    """Raises WorkerUnavailable for a message that makes no sense: such a worker cannot be relied on."""
    match message.WhichOneof("kind"):
        case "step":
            return _step_from_proto(message.step)
        case "attached":
            return Attached(WorkerId(message.attached.worker_id), tuple(Handle(h) for h in message.attached.unknown))
        case "heartbeat":
            return _heartbeat_from_proto(message.heartbeat)
        case kind:
            raise WorkerUnavailable(f"a worker sent a session message of kind {kind}; is it a newer build?")


def _heartbeat_to_proto(value: Heartbeat) -> pb.Heartbeat:
    return pb.Heartbeat(
        sequence=value.sequence, draining=value.draining, elsewhere=value.elsewhere, ending=value.ending
    )


def _heartbeat_from_proto(message: pb.Heartbeat) -> Heartbeat:
    return Heartbeat(message.sequence, message.draining, message.elsewhere, message.ending)


def _step_to_proto(news: StepNews) -> pb.Step:
    return pb.Step(
        number=news.number,
        handle=news.handles,
        attempt=news.attempts,
        index=news.indices,
        token_id=news.token_ids,
        logprob=news.logprobs,
        top_count=[len(top) for top in news.tops],
        top_token_id=[token for top in news.tops for token, _ in top],
        top_logprob=[logprob for top in news.tops for _, logprob in top],
        finished=[_ended_to_proto(ended) for ended in news.ended],
        scores=[_scores_to_proto(scores) for scores in news.scores],
    )


def _step_from_proto(step: pb.Step) -> StepNews:
    handles = list(step.handle)
    columns = (step.attempt, step.index, step.token_id)
    optional = (step.logprob, step.top_count)
    if any(len(column) != len(handles) for column in columns) or any(
        len(column) not in (0, len(handles)) for column in optional
    ):
        raise WorkerUnavailable(f"step {step.number} of a worker has columns of different lengths")
    return StepNews(
        step.number,
        handles,
        list(step.attempt),
        list(step.index),
        list(step.token_id),
        list(step.logprob),
        _tops(step) if step.top_count else (),
        [_ended_from_proto(finished) for finished in step.finished],
        [_scores_from_proto(scores) for scores in step.scores],
    )


def _tops(step: pb.Step) -> Sequence[Top]:
    """The flattened alternatives, cut into one tuple per entry."""
    flat = list(zip(step.top_token_id, step.top_logprob, strict=False))
    ends = list(accumulate(step.top_count))
    if ends[-1] != len(step.top_token_id) or ends[-1] != len(step.top_logprob):
        raise WorkerUnavailable(f"step {step.number} of a worker has alternatives that its counts do not cover")
    return [tuple(flat[end - count : end]) for end, count in zip(ends, step.top_count, strict=True)]


def _scores_to_proto(value: PromptScores) -> pb.PromptScores:
    scores = value.scores
    return pb.PromptScores(
        handle=value.handle,
        attempt=value.attempt,
        first=scores.first,
        logprob=scores.logprobs,
        top_count=len(scores.tops[0]) if scores.tops else 0,
        top_token_id=[token for top in scores.tops for token, _ in top],
        top_logprob=[logprob for top in scores.tops for _, logprob in top],
    )


def _scores_from_proto(message: pb.PromptScores) -> PromptScores:
    count, width = len(message.logprob), message.top_count
    if len(message.top_token_id) != count * width or len(message.top_logprob) != count * width:
        raise WorkerUnavailable("a worker sent scores of a prompt with alternatives that their count does not cover")
    flat = list(zip(message.top_token_id, message.top_logprob, strict=True))
    tops = [tuple(flat[place * width : (place + 1) * width]) for place in range(count)]
    return PromptScores(Handle(message.handle), message.attempt, Scores(message.first, list(message.logprob), tops))


def _ended_to_proto(ended: Ended) -> pb.Finished:
    usage = ended.usage
    error = ended.error
    return pb.Finished(
        handle=ended.handle,
        attempt=ended.attempt,
        reason=ended.reason.value,
        usage=pb.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        error=None if error is None else pb.Error(code=error.kind.code, message=error.message),
        snapshot_id=ended.snapshot_id,
    )


def _ended_from_proto(message: pb.Finished) -> Ended:
    reason = _REASONS.get(message.reason)
    if reason is None:
        raise WorkerUnavailable(f"a worker ended a request for a reason unknown to this build: {message.reason}")
    usage = Usage(message.usage.prompt_tokens, message.usage.completion_tokens, message.usage.cached_tokens)
    error = error_from_code(message.error.code, message.error.message) if reason is FinishReason.ERROR else None
    # Of an end that is no move it is nothing, whatever a damaged message says.
    snapshot_id = message.snapshot_id if reason is FinishReason.MOVED else ""
    return Ended(Handle(message.handle), message.attempt, reason, usage, error, snapshot_id)
