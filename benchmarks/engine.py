"""The bare engine (model, kernels, sampler) against transformers' `generate`: same weights, same tokens, turn by
turn.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import cast

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.utils import logging as transformers_logging

from benchmarks.bare_runner import BareRunner
from benchmarks.refusal import Refused
from segue.models.options import BuildOptions
from segue.weights.load import load_model

NAME = "engine"
SUMMARY = "decode and prefill tokens/s of the bare engine, as a multiple of transformers' generate"
BUNDLED_MODEL = Path(__file__).parent.parent / "segue" / "zoo" / "model"
# Two correct fp32 implementations may part at a near-tie; before that many tokens a difference is a mistake.
COMPARED_TOKENS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="model folder (default: the bundled one)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="batch sizes")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of each output")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side; the median counts")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of both sides")


@dataclass(slots=True)
class Times:
    """Seconds of each round, and the tokens of the last."""

    prefill_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)


class Clock(LogitsProcessor):
    """Notes the time at which transformers has the logits of each token."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.times_s.append(time.perf_counter())
        return scores


def run(args: argparse.Namespace) -> dict[str, object]:
    torch.set_num_threads(args.threads)
    transformers_logging.set_verbosity_error()
    oracle = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    # Without the folder's end token: both sides give every output its full length.
    oracle.generation_config = GenerationConfig(pad_token_id=0)
    figures: dict[str, object] = {}
    prefill_ratios: list[float] = []
    for batch in args.batch:
        prompts = _prompts(batch, args.prompt, oracle.config.vocab_size)
        sides = {"transformers": Times(), "engine": Times(), "deterministic": Times()}
        length = args.prompt + args.output
        runners = {
            name: BareRunner(
                load_model(args.model, BuildOptions(deterministic=deterministic)), batch=batch, length=length
            )
            for name, deterministic in (("engine", False), ("deterministic", True))
        }
        for timed in (False, *[True] * args.rounds):
            output = args.output if timed else COMPARED_TOKENS
            _generate(oracle, prompts, output, sides["transformers"])
            for name, runner in runners.items():
                _serve(runner, prompts, output, sides[name])
            if not timed:
                _check(sides)
                sides = {name: Times() for name in sides}
        decode, prefill = _rates(sides, batch, args.prompt, args.output)
        figures[f"decode_ratio_batch{batch}"] = round(decode["engine"] / decode["transformers"], 3)
        prefill_ratios.append(prefill["engine"] / prefill["transformers"])
        figures[f"batch_{batch}"] = _details(sides, decode, prefill, args.output)
    # The worst of all batch sizes.
    figures["prefill_ratio"] = round(min(prefill_ratios), 3)
    return figures


def _prompts(batch: int, length: int, vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(batch)
    prompts: list[list[int]] = torch.randint(vocab, (batch, length), generator=generator).tolist()
    return prompts


def _generate(oracle: PreTrainedModel, prompts: Sequence[Sequence[int]], output: int, times: Times) -> None:
    clock, inputs = Clock(), torch.tensor(prompts)
    config = GenerationConfig(max_new_tokens=output, do_sample=False, pad_token_id=0)
    # Typed as a tensor or module by torch's attribute look-up, of which it is neither.
    generate = cast(Callable[..., torch.Tensor], oracle.generate)
    started_s = time.perf_counter()
    with torch.inference_mode():
        out: torch.Tensor = generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            generation_config=config,
            logits_processor=LogitsProcessorList([clock]),
        )
    times.prefill_s.append(clock.times_s[0] - started_s)
    times.decode_s.append(clock.times_s[-1] - clock.times_s[0])
    times.tokens = out[:, inputs.shape[1] :].tolist()


def _serve(runner: BareRunner, prompts: Sequence[Sequence[int]], output: int, times: Times) -> None:
    started_s = time.perf_counter()
    requests = runner.prefill(prompts, output)
    first_s = time.perf_counter()
    runner.decode(requests, output - 1)
    times.prefill_s.append(first_s - started_s)
    times.decode_s.append(time.perf_counter() - first_s)
    times.tokens = [[token.token_id for token in request.output] for request in requests]


def _check(sides: Mapping[str, Times]) -> None:
    wanted = sides["transformers"].tokens
    for name, times in sides.items():
        for row, (got, want) in enumerate(zip(times.tokens, wanted, strict=True)):
            if got != want:
                raise Refused(f"{name} gives row {row} the tokens {got}, transformers gives {want}")


Rates = dict[str, float]
"""Tokens a second of each side."""


def _rates(sides: Mapping[str, Times], batch: int, prompt: int, output: int) -> tuple[Rates, Rates]:
    """Of decoding and of prefill, medians over the rounds."""
    decode = {name: batch * (output - 1) / median(times.decode_s) for name, times in sides.items()}
    prefill = {name: batch * prompt / median(times.prefill_s) for name, times in sides.items()}
    return decode, prefill


def _details(sides: Mapping[str, Times], decode: Rates, prefill: Rates, output: int) -> dict[str, object]:
    return {
        "prefill_ratio": round(prefill["engine"] / prefill["transformers"], 3),
        "deterministic_decode_ratio": round(decode["deterministic"] / decode["engine"], 3),
        "deterministic_prefill_ratio": round(prefill["deterministic"] / prefill["engine"], 3),
        "decode_tokens_per_s": {name: round(rate, 1) for name, rate in decode.items()},
        "prefill_tokens_per_s": {name: round(rate, 1) for name, rate in prefill.items()},
        "decode_step_ms": {
            name: round(1e3 * median(times.decode_s) / (output - 1), 3) for name, times in sides.items()
        },
    }
