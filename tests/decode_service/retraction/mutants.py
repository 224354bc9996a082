"""One-line mistakes in what backs state up, each of which the named tests must see."""

from tests.mutants import Mutant

_FOLDER = "tests/decode_service/retraction"
_MEMORY = (f"{_FOLDER}/test_host_memory.py", f"{_FOLDER}/test_store_machine.py")
_RUNS = (f"{_FOLDER}/test_runs.py",)
_TRIP = (f"{_FOLDER}/test_round_trip.py",)
_DIGESTS = (f"{_FOLDER}/test_digests.py",)
_BACKENDS = (f"{_FOLDER}/test_backends.py",)
# The others there read the repository, which a copy of the sources is not.
_COVERAGE = tuple(
    f"tests/state/test_coverage.py::test_{name}"
    for name in ("a_component_that_a_consumer_does_not_handle_is_refused_by_it", "what_is_covered_is_let_through")
)

_STORE_FILE = "decode_service/retraction/store.py"
_POOL_FILE = "decode_service/retraction/host_pool.py"
_EXTENTS_FILE = "decode_service/retraction/extents.py"
_RUNS_FILE = "decode_service/retraction/runs.py"
_BACKENDS_FILE = "decode_service/retraction/backends.py"

MUTANTS = (
    Mutant(
        "a hole is not joined with the one behind it",
        _EXTENTS_FILE,
        "if after and after[0].start == stop:",
        "if after and after[0].start < stop:",
        _MEMORY,
    ),
    Mutant(
        "the last free bytes are never given",
        _EXTENTS_FILE,
        "if length > self.free_bytes:",
        "if length >= self.free_bytes:",
        _MEMORY,
    ),
    Mutant(
        "a hole that is too small is taken for large enough",
        _EXTENTS_FILE,
        "self._take(hole, min(left, hole.length))",
        "self._take(hole, left)",
        _MEMORY,
    ),
    Mutant(
        "one component's room is enough for all",
        _POOL_FILE,
        "if any(count > self._pools",
        "if all(count > self._pools",
        _MEMORY,
    ),
    Mutant(
        "pages of the host are one too far",
        _POOL_FILE,
        "Extent(base + (run[0] - 1) * size",
        "Extent(base + run[0] * size",
        _TRIP,
    ),
    Mutant(
        "a small host has no window pages",
        _POOL_FILE,
        "min(max(counts[part.component], window_pages), room)",
        "min(counts[part.component], room)",
        _MEMORY,
    ),
    Mutant(
        "host memory of a backup is not given back",
        "decode_service/retraction/cpu_tensor.py",
        "        self._extents.free(extents)",
        "        return",
        _MEMORY,
    ),
    Mutant(
        "memory is written to that is not there",
        "decode_service/retraction/memory.py",
        "    if available is not None and size > available:",
        "    if available is not None and size > 2 * available:",
        _MEMORY,
    ),
    Mutant(
        "what a group has cached of files counts as used up",
        "decode_service/retraction/free_memory.py",
        "    return int(limit[0]) - int(usage[0]) + cached",
        "    return int(limit[0]) - int(usage[0])",
        _MEMORY,
    ),
    Mutant(
        "only the innermost group's limit counts",
        "decode_service/retraction/free_memory.py",
        "for folder in (inner, *inner.parents) if",
        "for folder in (inner,) if",
        _MEMORY,
    ),
    Mutant(
        "the rest of a unit is not copied",
        _RUNS_FILE,
        "        if left:",
        "        if left > unit_bytes:",
        _RUNS,
    ),
    Mutant(
        "a gap between two units is taken for a run",
        _RUNS_FILE,
        "!= 1) + 1",
        "> 2) + 1",
        _RUNS,
    ),
    Mutant(
        "what waits behind the last long run is not copied",
        _RUNS_FILE,
        "    if done < len(entries):",
        "    if done > len(entries):",
        _RUNS,
    ),
    Mutant(
        "what lies past the end of the last page is not cleared",
        _STORE_FILE,
        "row.stop == last + 1",
        "row.stop == last",
        _TRIP,
    ),
    Mutant(
        "a slot at another depth is saved",
        _STORE_FILE,
        "assert found == depth,",
        "assert found >= depth,",
        _DIGESTS,
    ),
    Mutant(
        "a dropped component is not zero-filled",
        _STORE_FILE,
        "[move for move in moves if move.component is self._dropped],",
        "[],",
        _DIGESTS,
    ),
    Mutant(
        "a changed state passes",
        _STORE_FILE,
        "if saved != restored:",
        "if saved.component != restored.component:",
        _DIGESTS,
    ),
    Mutant(
        "window pages may be anywhere",
        _STORE_FILE,
        "assert held == ours.in_window,",
        "assert len(held) == len(ours.in_window),",
        _DIGESTS,
    ),
    Mutant(
        "a backup can be given back twice",
        _STORE_FILE,
        "        self._backups.remove(ours)",
        "        return",
        _MEMORY,
    ),
    Mutant(
        "pages alone are taken for recurrent state",
        _BACKENDS_FILE,
        "if wanted is BackendName.HOST_POOL and uses_ssm_state(state):",
        "if wanted is BackendName.HOST_POOL and not state.components:",
        _BACKENDS,
    ),
    Mutant(
        "every model gets pages",
        _BACKENDS_FILE,
        "BackendName.CPU_TENSOR if uses_ssm_state(state) else BackendName.HOST_POOL",
        "BackendName.HOST_POOL",
        _BACKENDS,
    ),
    Mutant(
        "two carriers of recurrent state pass",
        "decode_service/retraction/backup.py",
        "assert carriers == recurrent,",
        "assert carriers >= recurrent,",
        _BACKENDS,
    ),
    Mutant(
        "the digest covers whatever there is",
        "kv_transfer/digest.py",
        "    COVERAGE.require(one.component for one in contents)\n",
        "",
        _COVERAGE,
    ),
    Mutant(
        "one component that is not handled passes",
        "segue/state/coverage.py",
        "        if missing:",
        "        if missing[1:]:",
        _COVERAGE,
    ),
)
