"""The rotary embedding of a token is the same bits whatever tokens stand beside it."""

from collections.abc import Iterator

import pytest
import torch

from segue.layers.rope import Rope, RopeConfig


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """That many threads for torch, which share a large operation out between them."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 80), (6, 64), (2, 6)])
def test_a_token_is_rotated_to_the_same_bits_in_any_company(heads: int, head_dim: int) -> None:
    rope = Rope(RopeConfig(theta=10_000.0), head_dim, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(777, heads, head_dim, generator=generator)
    positions = torch.randint(0, 5_000, (777,), generator=generator)
    alone = torch.cat(
        [rope.rotate(x[i : i + 1], rope.turns(position)) for i, position in enumerate(positions.split(1))]
    )
    for count in (1, 2, 17, 333, 601, 777):
        together = rope.rotate(x[:count], rope.turns(positions[:count]))
        assert torch.equal(together, alone[:count]), f"{count} tokens"
