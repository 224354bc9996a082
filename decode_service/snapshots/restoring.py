"""From a snapshot in the folder to what an engine can take: everything is validated before anything is allocated.

Runs on threads beside the event loop and the engine's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from decode_service.snapshots.identity import require_same
from decode_service.snapshots.images import STORED_DTYPE, StateForm, StateImage
from decode_service.snapshots.memory import ImageMemory
from segue.errors import (
    SnapshotCapacity,
    SnapshotLayoutMismatch,
    SnapshotManifestInvalid,
    SnapshotMemoryShort,
    SnapshotNotFound,
    SnapshotSourceMismatch,
)
from segue.state.layout import Shard
from segue.state.snapshot.claim import Claim
from segue.state.snapshot.committed import CommittedSnapshot
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.manifest import Manifest
from segue.tokens import EmittedToken
from segue.wire import GenerateSpec, sampling_to_json


@dataclass(frozen=True, slots=True)
class Restored:
    """A claimed snapshot in memory: its state, and the output that goes with it, pending token last.

    `cached_tokens` are those of the prompt whose state was reused when the request began.
    `named` says whether it was asked for, or only found: then the request could go on without it.
    """

    image: StateImage
    output: tuple[EmittedToken, ...]
    cached_tokens: int
    claim: Claim
    named: bool = True


class Restoring:
    """Opens snapshots for requests that go on from them."""

    def __init__(
        self,
        folder: SnapshotFolder,
        form: StateForm,
        memory: ImageMemory,
        identity: Mapping[str, str],
        owner: str,
        max_len: int,
    ) -> None:
        """`max_len` bounds prompt and output of a request, as the engine does."""
        self._folder = folder
        self._memory = memory
        self._max_len = max_len
        self._form = form
        self._identity = dict(identity)
        self._owner = owner

    def open(self, spec: GenerateSpec) -> Restored | None:
        """Claims and loads `spec.snapshot_id`. None when it is to go on without: an earlier attempt has used it up, or
        it was doubtful and there is none. Raises the Snapshot... error that says what is wrong with it, or QueueFull,
        and then leaves it as it was.
        """
        # On the wire an empty name is none.
        claimant = spec.claimant or None
        snapshot = self._find(spec, claimant)
        if snapshot is None:
            return None
        manifest = snapshot.manifest
        require_same(manifest.snapshot_id, manifest.state.identity, self._identity)
        self._require_form(manifest)
        _require_request(manifest, spec)
        self._require_length(spec)
        with self._memory.reserve(sum(payload.data_bytes for payload in manifest.payloads)) as reserved:
            claim = snapshot.claim(self._owner, claimant)
            try:
                image = self._load(snapshot, claim)
            except BaseException:
                claim.release()
                raise
            reserved.hold(image)
        return Restored(image, manifest.request.output, manifest.request.cached_tokens, claim)

    def discard(self, spec: GenerateSpec) -> None:
        """Removes a snapshot of this request that is not gone on from. Raises what keeps it there."""
        _require_request(self._folder.read(spec.snapshot_id).manifest, spec)
        self._folder.delete(spec.snapshot_id)

    def _find(self, spec: GenerateSpec, claimant: str | None) -> CommittedSnapshot | None:
        try:
            return self._folder.read(spec.snapshot_id)
        except SnapshotNotFound:
            if claimant is None:
                raise
            if self._folder.is_spent(spec.snapshot_id, claimant):
                return None
            if not spec.snapshot_doubtful:
                raise
        if self._folder.forbid(spec.snapshot_id, claimant):
            return None
        # It has just been committed; or it is somebody else's.
        return self._folder.read(spec.snapshot_id)

    def _load(self, snapshot: CommittedSnapshot, claim: Claim) -> StateImage:
        state, ranks = snapshot.manifest.state, []
        for rank in range(state.tp_size):
            try:
                # A large state takes a while to read.
                ranks.append(snapshot.load(rank, claim.keep))
            except MemoryError as error:
                size = snapshot.manifest.payloads[rank].data_bytes
                raise SnapshotMemoryShort(
                    f"snapshot {snapshot.manifest.snapshot_id}: there is no memory now for {size} bytes of it"
                ) from error
        claim.renew()
        return StateImage(state.computed, tuple(ranks))

    def _require_length(self, spec: GenerateSpec) -> None:
        """Asked before gigabytes are read; the engine asks again, of its pools too."""
        if (length := len(spec.prompt) + spec.sampling.max_tokens) > self._max_len:
            raise SnapshotCapacity(
                f"snapshot {spec.snapshot_id} does not fit here: its request may have {length} tokens, this worker "
                f"serves at most {self._max_len}"
            )

    def _require_form(self, manifest: Manifest) -> None:
        """Raises SnapshotLayoutMismatch unless the payloads have exactly the tensors that the state is made of."""
        state = manifest.state
        wanted = {one.component.value: (one.start, one.stop) for one in self._form.contents(state.computed)}
        if dict(state.components) != wanted:
            raise SnapshotLayoutMismatch(
                f"snapshot {manifest.snapshot_id} has positions {dict(state.components)} of its components, a state "
                f"after {state.computed} tokens is {wanted}"
            )
        if not self._form.splits(state.tp_size):
            raise SnapshotLayoutMismatch(
                f"snapshot {manifest.snapshot_id} is of {state.tp_size} ranks, over which this model does not split"
            )
        for payload in manifest.payloads:
            shard = Shard(payload.rank, state.tp_size)
            tensors = {
                one.name: (STORED_DTYPE[one.dtype], one.shape) for one in self._form.tensors(state.computed, shard)
            }
            found = {one.name: (one.dtype, one.shape) for one in payload.tensors}
            if found != tensors:
                differing = sorted(name for name in tensors | found if tensors.get(name) != found.get(name))
                raise SnapshotLayoutMismatch(
                    f"snapshot {manifest.snapshot_id}, rank {payload.rank}: tensor {differing[0]} is "
                    f"{found.get(differing[0], 'absent')}, {tensors.get(differing[0], 'absent')} is what fits here"
                )


def _require_request(manifest: Manifest, spec: GenerateSpec) -> None:
    """The snapshot is of this choice of this request, and of the output that the router knows of, or a part of it."""
    request = manifest.request
    if request.prompt != tuple(spec.prompt) or request.cache_salt != spec.cache_salt:
        raise SnapshotSourceMismatch(f"snapshot {manifest.snapshot_id} is of another prompt than the one that goes on")
    ours = sampling_to_json(spec.sampling)
    differing = [name for name in {**ours, **request.sampling} if ours.get(name) != request.sampling.get(name)]
    if differing:
        # Its output was drawn by other rules: another choice of the request, or one that only has the same name.
        raise SnapshotSourceMismatch(
            f"snapshot {manifest.snapshot_id} is of another sampling than what goes on: {', '.join(differing)}"
        )
    tokens = [token.token_id for token in request.output]
    shared = min(len(tokens), len(spec.emitted))
    if tokens[:shared] != list(spec.emitted[:shared]):
        raise SnapshotSourceMismatch(f"snapshot {manifest.snapshot_id} has another output than the one that goes on")
    told = request.output[len(spec.emitted) :]
    if spec.sampling.logprobs is not None and any(token.logprob is None for token in told):
        raise SnapshotSourceMismatch(
            f"snapshot {manifest.snapshot_id} has output that is to be told, and does not know its logprobs: whoever "
            "wrote it was given those tokens"
        )
    if len(request.prompt) + len(tokens) - 1 != manifest.state.computed:
        raise SnapshotManifestInvalid(f"snapshot {manifest.snapshot_id} has no pending token at its end")
