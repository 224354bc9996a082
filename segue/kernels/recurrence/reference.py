"""The recurrences of one head, plain and replayed, by their definition (rule.py); defines the result.

Gated delta: Yang et al., Gated Delta Networks, 2024. Kimi delta: Kimi Linear, 2025. Mamba2: Dao and Gu, 2024.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.rule import Rule


@dataclass(frozen=True, slots=True)
class Record:
    """What a step does to the state, with nothing in it that depends on the state any more."""

    correction: Tensor  # d: [value dim]
    key: Tensor  # [key dim]
    log_decay: Tensor  # [] or [key dim]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of one head."""

    query: Tensor  # [key dim]
    key: Tensor  # [key dim]
    value: Tensor  # [value dim]
    log_decay: Tensor  # [] or [key dim]
    beta: Tensor  # []
    skip: Tensor | None  # []

    @staticmethod
    def of(inputs: RecurrentInputs, token: int, group: int, head: int) -> "Token":
        place = token, group, head
        skip = None if inputs.skip is None else inputs.skip[group, head]
        query, key = inputs.query[token, group], inputs.key[token, group]
        return Token(query, key, inputs.value[place], inputs.log_decay[place], inputs.beta[place], skip)


def folded(state: Tensor, records: Sequence[Record]) -> Tensor:
    """The state [key dim, value dim] after the recorded steps."""
    for record in records:
        state = record.log_decay.exp().reshape(-1, 1) * state + torch.outer(record.key, record.correction)
    return state


def step(rule: Rule, token: Token, state: Tensor) -> tuple[Tensor, Tensor]:
    """What the token reads, and the state after it."""
    out, record = _step(rule, token, state)
    return out, folded(state, [record])


def replay_step(
    rule: Rule, token: Token, state: Tensor, records: Sequence[Record], flush: bool
) -> tuple[Tensor, Tensor, list[Record]]:
    """What the token reads, and the state and the records after it: the records folded into the state, or one more."""
    out, record = _step(rule, token, folded(state, records))
    records = [*records, record]
    return (out, folded(state, records), []) if flush else (out, state, records)


def scan(rule: Rule, inputs: RecurrentInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """All heads, token after token: state [groups, heads, key dim, value dim]. Returns reads like value, and the state
    after the last token.
    """
    out, state = torch.empty_like(inputs.value), state.clone()
    tokens, groups, heads = inputs.beta.shape
    for token in range(tokens):
        for group in range(groups):
            for head in range(heads):
                one = Token.of(inputs, token, group, head)
                out[token, group, head], state[group, head] = step(rule, one, state[group, head])
    return out, state


def _step(rule: Rule, token: Token, state: Tensor) -> tuple[Tensor, Record]:
    value = token.value
    if rule.corrected:
        value = value - (token.log_decay.exp() * token.key) @ state
    record = Record(token.beta * value, token.key, token.log_decay)
    out = token.query @ folded(state, [record])
    return (out if token.skip is None else out + token.skip * token.value), record
