"""One-line mistakes in how keys and values are stored in 8 bits, each of which the named tests must see."""

from tests.mutants import Mutant

_ATTENTION = ("tests/kernels/test_attention.py",)
_CODES = ("tests/kernels/test_quantization.py",)
_LAYOUT = ("tests/state/test_layout.py",)

_QUANTIZED = "segue/kernels/attention/quantized.py"
_CODES_FILE = "segue/kernels/quantization/codes.py"

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
)
