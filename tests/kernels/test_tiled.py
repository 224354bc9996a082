"""The deterministic kernels' elementwise functions: right, and blind to where in a tensor an element stands."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from segue.kernels.tiled import TiledKernels
from segue.layers.rope import Rope, RopeConfig
from tests.kernels.poisoned import noise

KERNELS = TiledKernels()
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (KERNELS.silu, torch.nn.functional.silu),
    "sigmoid": (KERNELS.sigmoid, torch.sigmoid),
    "softplus": (KERNELS.softplus, torch.nn.functional.softplus),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_what_their_names_say(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    x = torch.cat([noise(10_000) * 4, torch.tensor([0.0, -90.0, 90.0, -1e4, 1e4])])
    torch.testing.assert_close(ours(x), theirs(x.double()).float(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_has_the_same_bits_in_a_loop_and_in_its_tail(name: str) -> None:
    ours, _ = FUNCTIONS[name]
    x = noise(100_000) * 3
    whole = ours(x)
    for length in (*range(1, 40), 1000, 40_003):
        for start in (0, 1, 5):
            part = slice(start, start + length)
            assert torch.equal(ours(x[part]), whole[part])
            assert torch.equal(ours(x[part].clone()), whole[part])


@pytest.mark.parametrize("head_dim", [8, 16, 20, 64])
def test_a_token_is_rotated_to_the_same_bits_in_any_batch(head_dim: int) -> None:
    rope = Rope(RopeConfig(theta=10_000.0), head_dim, torch.device("cpu"))
    positions = torch.arange(300) * 7
    x = noise(300, 3, head_dim)
    whole = rope.rotate(x, rope.turns(positions))
    for token in range(300):
        one = slice(token, token + 1)
        assert torch.equal(rope.rotate(x[one], rope.turns(positions[one])), whole[one])
