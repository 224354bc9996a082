"""One-line mistakes in 8-bit keys and values and in replayed recurrences, each of which the named tests must see."""

from tests.mutants import Mutant

_ATTENTION = ("tests/kernels/test_attention.py",)
_CODES = ("tests/kernels/test_quantization.py",)
_LAYOUT = ("tests/state/test_layout.py",)
_RECURRENCE = ("tests/kernels/test_recurrence.py",)
_MACHINE = ("tests/kernels/test_replay_machine.py",)
_TRITON = ("tests/kernels/test_recurrence_triton.py",)

_QUANTIZED = "segue/kernels/attention/quantized.py"
_CODES_FILE = "segue/kernels/quantization/codes.py"
_BATCHED = "segue/kernels/recurrence/batched.py"
_KERNELS = "segue/kernels/recurrence/triton.py"
_CHUNK = "segue/kernels/recurrence/chunk.py"

MUTANTS = (
    Mutant(
        "decoding forgets the scales of values",
        _QUANTIZED,
        "weights.mul_(value_scales).to(dtype)",
        "weights.to(dtype)",
        _ATTENTION,
    ),
    Mutant(
        "decoding forgets the scales of keys",
        _QUANTIZED,
        ".float().mul_(key_scales).add_(",
        ".float().add_(",
        _ATTENTION,
    ),
    Mutant(
        "scales are read where codes lie",
        _QUANTIZED,
        "table.tensor(table.token_rows(tokens.rows, seen.positions, heads, self.scale_rows))",
        "table.tensor(table.token_rows(tokens.rows, seen.positions, heads, self.code_rows))",
        _ATTENTION,
    ),
    Mutant(
        "extending forgets the scales",
        _QUANTIZED,
        "scratch).mul_(factors)",
        "scratch)",
        _ATTENTION,
    ),
    Mutant(
        "values overwrite keys",
        _QUANTIZED,
        'blocks, "keys"), self._gather(layer, "v", blocks, "values")',
        'blocks, "keys"), self._gather(layer, "v", blocks, "keys")',
        _ATTENTION,
    ),
    Mutant(
        "sums over codes are made in fp16",
        _QUANTIZED,
        "torch.float32 if query.dtype is torch.float16 else query.dtype",
        "query.dtype",
        _ATTENTION,
    ),
    Mutant(
        "codes are expanded without their sign",
        _CODES_FILE,
        "7, ~0x4000, 256.0",
        "7, 0x3FFF, 256.0",
        _CODES,
    ),
    Mutant(
        "zeros are divided by zero",
        _CODES_FILE,
        ".clamp_(SCALE_MIN, SCALE_MAX)",
        ".clamp_(0.0, SCALE_MAX)",
        _CODES,
    ),
    Mutant(
        "head groups are only 64 bytes aligned",
        "segue/state/layout.py",
        "_aligned(offset, math.lcm(ALIGN_BYTES, *vectors))",
        "_aligned(offset, ALIGN_BYTES)",
        _LAYOUT,
    ),
    Mutant(
        "a record overwrites the one before it",
        _BATCHED,
        "ring.keys[rings, :, cursors] =",
        "ring.keys[rings, :, (cursors - 1).clamp(min=0)] =",
        _RECURRENCE,
    ),
    Mutant(
        "what lies at a cursor counts as a record",
        _BATCHED,
        "< cursors.unsqueeze(1)",
        "<= cursors.unsqueeze(1)",
        _RECURRENCE,
    ),
    Mutant(
        "records decay from the ring's start instead of to its end",
        _BATCHED,
        "weights = (total - sums)",
        "weights = (-sums)",
        _MACHINE,
    ),
    Mutant(
        "a matrix does not decay over its records",
        _BATCHED,
        "state.mul_(self.total[row].exp().transpose(-1, -2))",
        "state.mul_(1.0)",
        _MACHINE,
    ),
    Mutant(
        "log decays are not summed along a ring",
        _BATCHED,
        "total = total + past.total[kept].reshape(total.shape)",
        "total = total + 0.0",
        _MACHINE,
    ),
    Mutant(
        "a forced flush folds and does not move the cursor back",
        _BATCHED,
        "torch.where(flush[live] | (records >= length - 1), 0, records + 1)",
        "torch.where(records >= length - 1, 0, records + 1)",
        _MACHINE,
    ),
    Mutant(
        "a full ring is not flushed",
        _BATCHED,
        "writes = flush | (records >= memory.length - 1)",
        "writes = flush | (records >= memory.length)",
        _MACHINE,
    ),
    Mutant(
        "a materialized slot keeps its cursor",
        _BATCHED,
        "cursors[pending] = 0",
        "cursors[pending] += 0",
        _MACHINE,
    ),
    Mutant(
        "ring rows are taken for slots",
        _BATCHED,
        "Past.of(rule, memory.ring, rows.rings, rows.cursors, rows.records_max)",
        "Past.of(rule, memory.ring, rows.slots, rows.cursors, rows.records_max)",
        _MACHINE,
    ),
    Mutant(
        "padding is decoded like a row",
        _BATCHED,
        "live = (slots > SINK).nonzero().flatten()",
        "live = (slots >= SINK).nonzero().flatten()",
        _MACHINE,
    ),
    Mutant(
        "a kernel takes what lies at a cursor for a key",
        _KERNELS,
        "there = (records < cursor)[:, None]",
        "there = (records <= cursor)[:, None]",
        _TRITON,
    ),
    Mutant(
        "a kernel takes the sum of log decays one record too far",
        _KERNELS,
        "at_last = (cursor - 1) * HEADS + head",
        "at_last = cursor * HEADS + head",
        _TRITON,
    ),
    Mutant(
        "a kernel that flushes forgets the token's decay",
        _KERNELS,
        "part_state = _times(part_state, decay, VECTOR_DECAY)",
        "part_state = _times(part_state, 1.0, VECTOR_DECAY)",
        _TRITON,
    ),
    Mutant(
        "keys are recorded where a group has a second head",
        _KERNELS,
        "        if head == 0:",
        "        if head == 1:",
        _TRITON,
    ),
    Mutant(
        "products are read from another group",
        _KERNELS,
        "((row * GROUPS + group) * PLACES + head % PLACES) * 2 * RING",
        "((row * GROUPS) * PLACES + head % PLACES) * 2 * RING",
        _TRITON,
    ),
    Mutant(
        "the kernel that moves cursors on ignores a forced flush",
        _KERNELS,
        "flushed = (tl.load(flush + at, mask=live, other=0) != 0) | (cursor >= LENGTH - 1)",
        "flushed = cursor >= LENGTH - 1",
        _TRITON,
    ),
    Mutant(
        "a token in a chunk does not read itself",
        _CHUNK,
        ".triu(1)",
        ".triu()",
        _RECURRENCE,
    ),
    Mutant(
        "keys decay from a chunk's start instead of to its end",
        _CHUNK,
        "(sums[..., -1:, :] - sums)",
        "(sums[..., :1, :] - sums)",
        _RECURRENCE,
    ),
)
