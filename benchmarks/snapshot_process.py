"""One process of `snapshot`: an engine that answers one request, to its end or to its export, or from a snapshot on.

Prints one line of JSON: tokens, logprobs, and what forwards were completed.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from queue import SimpleQueue

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.parts import retraction_parts
from decode_service.snapshots.commands import SnapshotDone, WriteSnapshot
from decode_service.snapshots.identity import snapshot_identity
from decode_service.snapshots.images import StateImages
from decode_service.snapshots.restoring import Restoring
from decode_service.snapshots.taking import SnapshotTaking
from decode_service.snapshots.writing import SnapshotWriting
from kv_transfer.hosting.loading import load
from segue.batch.sampling import SamplingParams
from segue.config import EngineConfig
from segue.ids import Handle, RequestId, RouterId
from segue.state.layout import Shard
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.names import new_id
from segue.tokens import EmittedToken
from segue.wire import GenerateSpec

HANDLE = Handle(1)
WRITE_S_MAX = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--folder", default="", help="snapshots; a folder of its own where none is given")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompt", type=int, default=44)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--export-at", type=int, default=0, help="tokens before the export; 0: none")
    parser.add_argument("--restore", default="", metavar="ID")
    parser.add_argument("--known", default="[]", help="the output so far, as a JSON list")
    args = parser.parse_args()
    folder = args.folder or tempfile.mkdtemp()
    print(json.dumps(answer(args, folder)), flush=True)


def answer(args: argparse.Namespace, folder: str) -> dict[str, object]:
    """What there is to tell of the one request."""
    config = EngineConfig(model=args.model, tp=args.tp, state_bytes=16 << 20, max_running=4, max_len=1024, threads=1)
    parts = retraction_parts(RetractionConfig(host_bytes=1 << 20), config.page_tokens)
    loaded = load(config, lambda _: None, lambda _: None, parts)
    built, engine = loaded.built, loaded.engine
    assert built is not None, "an engine was built"
    images = StateImages(built.storage, built.slots, config.page_tokens, engine.facts.window)
    identity = snapshot_identity(loaded.identity)
    snapshots = SnapshotFolder.open(SnapshotConfig(folder=folder))
    writing, done = SnapshotWriting(snapshots), SimpleQueue[SnapshotDone]()
    taking = SnapshotTaking(engine, images, writing, identity, done.put)
    spec, output = _spec(args), list[EmittedToken]()
    if args.restore:
        restored = Restoring(snapshots, images.form, identity, "benchmark").open(spec)
        assert restored is not None, "the snapshot is there"
        engine.restore(spec, HANDLE, restored.image, restored.output, restored.cached_tokens)
        restored.claim.consume()
    else:
        engine.submit(spec, HANDLE)
    decoded = 0
    while not (args.export_at and len(output) == args.export_at) and (record := engine.launch()) is not None:
        decoded += sum(row.decode for row in record.plan.rows)
        output += engine.commit(record).tokens
    found: dict[str, object] = {}
    if args.export_at:
        command = WriteSnapshot(HANDLE, 0, "export", served=len(output), about={}, snapshot_id=new_id())
        taking.ask(command)
        taking.turn()
        taking.done(done.get(timeout=WRITE_S_MAX))
        written = command.answer.result()
        found["snapshot_id"], found["file_bytes"] = written.snapshot_id, written.bytes
        payloads = snapshots.read(written.snapshot_id).manifest.payloads
        found["payload_bytes"] = sum(tensor.byte_count for payload in payloads for tensor in payload.tensors)
        found["layout_bytes"] = sum(
            images.form.bytes(written.computed, Shard(rank, args.tp)) for rank in range(args.tp)
        )
    engine.check()
    assert engine.idle, "the request is over"
    status = engine.status()
    found["left_held"] = sum(pool.held for pool in status.pools)
    found["decode_inputs"], found["extend_inputs"] = decoded, status.prefill_tokens
    found["recomputed"] = status.retraction.recomputed_tokens
    found["tokens"] = [token.token_id for token in output]
    found["logprobs"] = [token.logprob for token in output]
    found["tops"] = [token.top for token in output]
    writing.close()
    if built.crew is not None:
        built.crew.close()
    return found


def _spec(args: argparse.Namespace) -> GenerateSpec:
    sampled = args.temperature > 0
    sampling = SamplingParams(
        seed=11,
        temperature=args.temperature,
        top_p=0.9 if sampled else 1.0,
        max_tokens=args.output,
        ignore_eos=True,
        logprobs=4,
    )
    return GenerateSpec(
        router_id=RouterId("benchmark"),
        request_id=RequestId("one"),
        attempt=0,
        prompt=tuple((31 * i) % 500 for i in range(args.prompt)),
        emitted=tuple(json.loads(args.known)),
        sampling=sampling,
        snapshot_id=args.restore,
    )


if __name__ == "__main__":
    main()
    sys.stdout.flush()
