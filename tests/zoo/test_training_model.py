"""The training forward is transformers' function, and its own gradients are those of plain autograd."""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from segue.zoo.architecture import Architecture, Mixer, transformers_config
from segue.zoo.delta_rule import affine_scan, chunk_system, chunk_terms, unit_lower_inverse
from segue.zoo.export import write_weights
from segue.zoo.parameters import initial_flat, named_views
from segue.zoo.training_model import PLAIN, TrainingModel, make_rows

TINY = Architecture(
    vocab=97,
    hidden=32,
    mixers=(Mixer.LINEAR, Mixer.SLIDING, Mixer.LINEAR, Mixer.FULL),
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    window=32,
    key_heads=2,
    value_heads=4,
    key_dim=16,
    value_dim=8,
    expert_width=24,
    shared_width=40,
    tokens_max=256,
)


def test_its_logits_are_those_of_transformers(tmp_path: Path) -> None:
    flat = initial_flat(TINY, seed=1)
    # Norm weights start at one, which would hide a norm that is left out.
    flat += 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(2))
    write_weights(TINY, flat, tmp_path, torch.float32)
    config = transformers_config(TINY, begin_id=0, end_id=1) | {"dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(TINY.vocab, (2, 256), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = oracle(tokens, position_ids=torch.arange(256).expand(2, -1)).logits
        rows = make_rows(TINY, 2, 256, torch.device("cpu"), torch.float32)
        model = TrainingModel(TINY, PLAIN, torch.float32)
        logits = model.logits(named_views(TINY, flat), tokens.flatten(), rows)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits.view(expected.shape), expected, atol=1e-4, rtol=0)


def _step_by_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The rule as it is written down: [heads, tokens, dim] in, [heads, tokens, value dim] out."""
    groups = v.shape[0] // k.shape[0]
    q, k = q.repeat_interleave(groups, 0), k.repeat_interleave(groups, 0)
    state = torch.zeros(v.shape[0], k.shape[-1], v.shape[-1], dtype=v.dtype)
    outputs = []
    for t in range(v.shape[1]):
        state = state * g[:, t, None, None].exp()
        read = (state * k[:, t, :, None]).sum(1)
        state = state + k[:, t, :, None] * (beta[:, t, None] * (v[:, t] - read))[:, None]
        outputs.append((state * q[:, t, :, None]).sum(1))
    return torch.stack(outputs, 1)


def _by_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    q, k, v, g, beta = (part.unflatten(1, (-1, 8)) for part in (q, k, v, g, beta))
    inverse = unit_lower_inverse(chunk_system(k, g, beta))
    m, n, q_state, own = chunk_terms(inverse, q, k, v, g, beta)
    return (q_state @ affine_scan(m, n) + own).flatten(1, 2)


def _delta_rule_inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(2, 32, 6), dim=-1) for _ in range(2))
    return [q, k, normal(4, 32, 5), -normal(4, 32).abs() * 0.1, normal(4, 32).sigmoid()]


def test_the_chunk_form_and_its_gradients_are_those_of_the_step_form() -> None:
    inputs = [part.requires_grad_() for part in _delta_rule_inputs()]
    expected = _step_by_step(*inputs)
    result = _by_chunks(*inputs)
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=0)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for grad, grad_expected in zip(
        torch.autograd.grad(result, inputs, weights), torch.autograd.grad(expected, inputs, weights), strict=True
    ):
        torch.testing.assert_close(grad, grad_expected, atol=1e-11, rtol=0)


def test_the_triangular_inverse_passes_a_numeric_gradient_check() -> None:
    lower = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(6), dtype=torch.float64).tril(-1)
    torch.testing.assert_close(unit_lower_inverse(lower), torch.linalg.inv(torch.eye(8) + lower))
    torch.autograd.gradcheck(lambda a: unit_lower_inverse(a.tril(-1)), lower.requires_grad_())


def test_the_scan_passes_a_numeric_gradient_check() -> None:
    generator = torch.Generator().manual_seed(7)
    m = torch.randn(2, 4, 3, 3, generator=generator, dtype=torch.float64).requires_grad_()
    n = torch.randn(2, 4, 3, 2, generator=generator, dtype=torch.float64).requires_grad_()
    torch.autograd.gradcheck(affine_scan, (m, n))
