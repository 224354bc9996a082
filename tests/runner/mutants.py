"""One-line mistakes in how ranks share a model and its state, each of which the named tests must see."""

from tests.mutants import Mutant

_FAMILIES = ("tests/runner/ranks/test_families.py",)
_PAIR = ("tests/handoff/test_ranks.py::test_any_two_degrees_hand_over_a_whole_state", "tests/kv_transfer/test_plan.py")
_RETRACTED = ("tests/handoff/test_ranks.py::test_retraction_on_two_ranks_changes_no_bit",)
_DIGEST = ("tests/kv_transfer/test_digest.py",)
_PLAN = ("tests/kv_transfer/test_plan.py",)

MUTANTS = (
    Mutant(
        "a slot is zeroed on rank 0 alone",
        "segue/state/storage.py",
        "        for rank in self._ranks:\n            rank.zero(component, unit)\n",
        "        self._ranks[0].zero(component, unit)\n",
        _FAMILIES,
    ),
    Mutant(
        "a slot is copied on rank 0 alone",
        "segue/state/storage.py",
        "        for rank in self._ranks:\n            rank.copy(component, source, target)\n",
        "        self._ranks[0].copy(component, source, target)\n",
        _FAMILIES,
    ),
    Mutant(
        "the sum of a layer is that of rank 0",
        "segue/layers/decoder.py",
        "            stream.add_(self._parts.ranks.all_reduce(part))\n",
        "            stream.add_(part)\n",
        _FAMILIES,
    ),
    Mutant(
        "every rank adds the output bias",
        "segue/models/parts.py",
        "bias=outward_bias if self.options.shard.tp_rank == 0 else None",
        "bias=outward_bias",
        _FAMILIES,
    ),
    Mutant(
        "ranks that share a group all add it",
        "segue/models/lara_mini.py",
        "    if not shard.leads(shape.groups):\n",
        "    if False:\n",
        _FAMILIES,
    ),
    Mutant(
        "ranks that share a KV head take neighbouring ones",
        "segue/state/layout.py",
        "        return self.tp_rank * total // self.tp_size\n",
        "        return self.tp_rank % total if total < self.tp_size else self.tp_rank * total // self.tp_size\n",
        (*_FAMILIES, *_PLAN),
    ),
    Mutant(
        "rings are folded on rank 0 alone",
        "segue/runner/ranks/led.py",
        "        self._crew.broadcast(Order.FOLD, np.array([slot, row, count]))\n",
        "        return self._ours.fold(slot, row, count)\n",
        _FAMILIES,
    ),
    Mutant(
        "a deterministic sum of four is gloo's",
        "segue/runner/ranks/process_ranks.py",
        "        self._ordered = ordered and shard.tp_size > 2\n",
        "        self._ordered = False\n",
        ("tests/runner/ranks/test_families.py::test_deterministic_ranks_do_not_depend_on_the_batch",),
    ),
    Mutant(
        "every rank is sent from rank 0",
        "kv_transfer/plan.py",
        "            rank = source[0].holders(total, group).start\n",
        "            rank = 0\n",
        _PLAN,
    ),
    Mutant(
        "blocks go to rank 0's part",
        "kv_transfer/blocks.py",
        "            theirs = target[1].part(piece.component, run.target_rank)\n",
        "            theirs = target[1].part(piece.component, 0)\n",
        _PAIR,
    ),
    Mutant(
        "messages may write to rank 0's part alone",
        "kv_transfer/block_messages.py",
        "        for part in arena_map.ranks(row.component):\n",
        "        for part in arena_map.ranks(row.component)[:1]:\n",
        _PAIR,
    ),
    Mutant(
        "a digest is of every rank's copies",
        "kv_transfer/digest.py",
        "if layout.shard.leads(layout.total_groups)\n",
        "if layout.groups\n",
        _DIGEST,
    ),
    Mutant(
        "copies that ranks share are not compared",
        "kv_transfer/digest.py",
        "            elif sums.tolist() != shared:\n",
        "            elif False:\n",
        _DIGEST,
    ),
    Mutant(
        "a tail is cleared on rank 0 alone",
        "kv_transfer/digest.py",
        "    for rank in storage.ranks:\n        layout = rank.layouts[component]\n        assert 0",
        "    for rank in storage.ranks[:1]:\n        layout = rank.layouts[component]\n        assert 0",
        ("tests/kv_transfer/test_clearing_tails.py",),
    ),
    Mutant(
        "the embedding of a rank is off by one",
        "segue/layers/embedding.py",
        "        rows = token_ids - self.first\n",
        "        rows = token_ids - self.first - (self.first > 0)\n",
        _FAMILIES,
    ),
    Mutant(
        "a rank heeds the terminal's Ctrl-C",
        "segue/rank.py",
        "        signal.signal(number, signal.SIG_IGN)\n",
        "        pass\n",
        ("tests/cluster/test_ranks.py",),
    ),
    Mutant(
        "nobody asks for signs of life",
        "segue/runner/ranks/crew.py",
        "            watching.start()\n",
        "            pass\n",
        ("tests/runner/ranks/test_lost_ranks.py",),
    ),
    Mutant(
        "a backup has rank 0's part twice",
        "decode_service/retraction/copies.py",
        "            for part, extents in zip(parts, cut(move.extents, sizes), strict=True)\n",
        "            for part, extents in zip([parts[0]] * len(parts), cut(move.extents, sizes), strict=True)\n",
        _RETRACTED,
    ),
    Mutant(
        "a lost rank is not told to the worker",
        "kv_transfer/hosting/engine_thread.py",
        "            crew.lost.add_done_callback(self._on_lost)\n",
        "            pass\n",
        ("tests/cluster/test_ranks.py",),
    ),
    Mutant(
        "requests of a worker that lost a rank end",
        "decode_service/worker.py",
        "        self._end_all(error if isinstance(error, RankLost) else told)\n",
        "        self._end_all(told)\n",
        ("tests/cluster/test_ranks.py",),
    ),
    Mutant(
        "a rank that is stopped outlives rank 0",
        "segue/rank.py",
        "    tie_to_parent(int(sys.argv[1]))\n",
        "",
        ("tests/cluster/test_ranks.py",),
    ),
    Mutant(
        "regions are neighbours",
        "segue/state/regions.py",
        "            end += tensor.numel() + ALIGN_BYTES\n",
        "            end += tensor.numel()\n",
        ("tests/state/test_regions.py",),
    ),
    Mutant(
        "NIXL is told of one region alone",
        "kv_transfer/nixl_agent.py",
        '    at = np.searchsorted(starts, offsets, side="right") - 1\n',
        "    at = np.zeros(len(offsets), dtype=np.int64)\n",
        ("tests/kv_transfer/test_nixl_agent.py::test_a_write_reaches_every_region_from_every_region",),
    ),
    Mutant(
        "every rank's part begins where rank 0's does",
        "kv_transfer/arena_map.py",
        "            base = storage.regions.starts[rank] + within\n",
        "            base = within\n",
        ("tests/decode_service/retraction/test_round_trip.py",),
    ),
    Mutant(
        "all ranks are given the first one's memory",
        "segue/runner/ranks/orders.py",
        "handles[rank - 1] if handles else None",
        "handles[0] if handles else None",
        ("tests/runner/ranks/test_orders.py::test_every_rank_finds_its_own_handle_in_an_allocation",),
    ),
    Mutant(
        "a rank leaves a step out",
        "segue/runner/ranks/follower.py",
        "        carry_out(order, values)\n",
        "        carry_out(Order.SETTLE if order is Order.COMPUTE else order, values)\n",
        ("tests/runner/ranks/test_orders.py::test_all_ranks_take_the_steps_of_rank_0_in_its_order",),
    ),
)
