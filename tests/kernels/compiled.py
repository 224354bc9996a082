"""Compiles the recurrences' kernels for a GPU of compute capability 9.0, which takes no device; no test by itself.

The interpreter runs what the compiler refuses (a name that changes its shape in a loop). A process of its own, because
where kernels are interpreted Triton does not compile.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from segue.kernels.recurrence import triton as kernels
from segue.kernels.recurrence.rule import Rule

TARGET = GPUTarget("cuda", 90, 32)
INTEGERS = {"slots": "*i64", "rings": "*i64", "cursors": "*i32", "flush": "*u8", "rows": "i32"}
RECORDS = {"ring_d": "*bf16", "ring_k": "*bf16"}
STRIDE_ENDINGS = ("_row", "_group", "_slot", "_ring")


def compile_kernel(kernel: "triton.JITFunction[object]", constants: dict[str, object]) -> None:
    """As launch.py calls it; `constants` that the kernel does not take are left out."""
    names = kernel.arg_names
    given = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in given else _type(name) for name in names}
    places = {(names.index(name),): value for name, value in given.items()}
    triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=places), target=TARGET)


def main() -> None:
    for rule in Rule:
        constants: dict[str, object] = {"GROUPS": 2, "HEADS": 2, "KEY_DIM": 40, "VALUE_DIM": 24}
        constants |= {
            "LENGTH": 16,
            "RING": 16,
            "BLOCK_K": 64,
            "BLOCK_V": 16,
            "READ_K": 8,
            "FOLD_K": 16,
            "PRECISION": "ieee",
            "DEPENDENT": True,
        }
        constants |= {"VECTOR_DECAY": rule.vector_decay, "CORRECTED": rule.corrected, "SKIP": not rule.corrected}
        if rule.corrected:
            constants["skip"] = None
        for kernel in (kernels.step_kernel, kernels.products_kernel, kernels.replay_kernel, kernels.fold_kernel):
            compile_kernel(kernel, constants)
    compile_kernel(kernels.advance_kernel, {"LENGTH": 16, "BLOCK": 8})
    compile_kernel(kernels.reset_kernel, {"BLOCK": 8})


def _type(name: str) -> str:
    if name.endswith(STRIDE_ENDINGS):
        return "i64"
    return INTEGERS.get(name) or RECORDS.get(name) or "*fp32"


if __name__ == "__main__":
    main()
    sys.stdout.write("compiled\n")
