"""One digest for all weights of a folder, so that two processes can tell that they serve the same model.

It covers every tensor's normalised name, dtype, shape and bytes, and neither file names nor sharding: a checkpoint that
was merely cut into other shards is the same model.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from segue.weights.source import normalised
from segue.weights.tensor_file import TensorFile

DIGEST_BYTES = 20


def weights_digest(files: Sequence[TensorFile]) -> str:
    """Hex digest. Reads every byte once; hashing lets go of the interpreter lock, so files are hashed in parallel."""
    jobs = [(file, name) for file in files for name in file.tensors]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(lambda job: _tensor_digest(*job), jobs))
    total = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for digest in sorted(digests):
        total.update(digest)
    return total.hexdigest()


def _tensor_digest(file: TensorFile, stored_name: str) -> bytes:
    stored = file.tensors[stored_name]
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(repr((normalised(stored_name), stored.dtype.value, stored.shape)).encode())
    digest.update(file.raw(stored_name))
    return digest.digest()
