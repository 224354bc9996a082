"""A manifest as the router's own terms: what is asked of a worker to go on, and what its client is still to get."""

from dataclasses import dataclass

from router.choice import Earlier
from router.choice_text import ChoiceText
from router.inbox import Arrivals
from router.openai.plan import PlannedChoice
from router.piece import Piece
from router.snapshots.about import About, about_from_json
from router.text.tokenizer import Tokenizer
from segue.errors import SnapshotManifestInvalid, SnapshotSourceMismatch
from segue.state.snapshot.manifest import Manifest, ManifestRequest
from segue.wire import WorkerDescription, sampling_from_json

_OWN_USE = {
    "periodic": "kept by a worker in case that it is lost",
    "parked": "written by a router that goes on from it by itself",
}


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request out of a snapshot: `text` has taken all of its output, and `earlier` says what of that is due."""

    about: About
    planned: PlannedChoice
    output: tuple[int, ...]
    text: ChoiceText
    earlier: Earlier


def stored_request(manifest: Manifest, worker: WorkerDescription, tokenizer: Tokenizer) -> StoredRequest:
    """Raises SnapshotManifestInvalid for what no request can have been, SnapshotSourceMismatch for another's use."""
    request = manifest.request
    if (own := _OWN_USE.get(request.kind)) is not None:
        raise SnapshotSourceMismatch(
            f"snapshot {manifest.snapshot_id} is {request.kind}, {own}: it does not say what the client has, and only "
            "one that was asked for can be resumed"
        )
    about = about_from_json(request.about)
    planned = PlannedChoice(
        index=0, prompt_number=0, prompt=request.prompt, sampling=sampling_from_json(request.sampling)
    )
    output = tuple(token.token_id for token in request.output)
    if len(output) >= planned.sampling.max_tokens:
        raise SnapshotManifestInvalid(
            f"the request has {len(output)} output tokens of {planned.sampling.max_tokens}: it has ended"
        )
    unknown = next((token for token in (*planned.prompt, *output) if token >= worker.vocab_size), None)
    if unknown is not None:
        raise SnapshotManifestInvalid(f"token {unknown} is outside the vocabulary of {worker.vocab_size}")
    text = ChoiceText(tokenizer.token_bytes, tokenizer.special_ids, about.text, planned)
    unsent = _unsent(request, about, planned, text)
    return StoredRequest(about, planned, output, text, Earlier(about.sent, unsent, request.cached_tokens))


def _unsent(request: ManifestRequest, about: About, planned: PlannedChoice, text: ChoiceText) -> Piece:
    """Gives `text` the output token by token, which lets out as much as any other way of cutting it."""
    scored = planned.sampling.logprobs is not None
    texts: list[str] = []
    reports = []
    for token in request.output:
        arrived = Arrivals([token.token_id])
        if scored:
            # None where its writer did not know it; what is not known is told as that, if it is still to be told.
            arrived.logprobs.append(token.logprob)
            arrived.tops.append(token.top)
        piece = text.push(arrived)
        texts.append(piece.text)
        reports += piece.reports or []
        if text.stopped_at is not None:
            break
    told, sent = "".join(texts), about.sent
    if sent.characters > len(told) or sent.reports > len(reports):
        raise SnapshotManifestInvalid(
            f"the client is said to have {sent.characters} characters and {sent.reports} reports, "
            f"the output gives {len(told)} and {len(reports)}"
        )
    return Piece(told[sent.characters :], reports[sent.reports :] if scored else None)
