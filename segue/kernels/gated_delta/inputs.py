"""What the gated delta rule is given for some tokens."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """All fp32; `heads` counts the value heads of a group, which is one key head."""

    query_key: Tensor  # [tokens, groups, 2, key dim], the query before the key
    value: Tensor  # [tokens, groups, heads, value dim]
    log_decay: Tensor  # [tokens, groups, heads]
    beta: Tensor  # [tokens, groups, heads]

    def at(self, tokens: slice) -> "DeltaInputs":
        """The inputs of some of the tokens."""
        return DeltaInputs(self.query_key[tokens], self.value[tokens], self.log_decay[tokens], self.beta[tokens])
