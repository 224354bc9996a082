"""What a recurrence is given for some tokens."""

from dataclasses import dataclass

from torch import Tensor

from segue.kernels.gated_delta.inputs import DeltaInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentInputs:
    """A group is one key head with the `heads` value heads that it serves."""

    query: Tensor  # [tokens, groups, key dim]
    key: Tensor  # [tokens, groups, key dim]
    value: Tensor  # [tokens, groups, heads, value dim]
    log_decay: Tensor  # [tokens, groups, heads], and [key dim] each where the rule's decay is a vector
    beta: Tensor  # [tokens, groups, heads]
    skip: Tensor | None = None  # [groups, heads]: how much of its own value a read contains beside the state's

    @staticmethod
    def of(inputs: DeltaInputs) -> "RecurrentInputs":
        """Those of the gated delta rule."""
        query, key = inputs.query_key.unbind(2)
        return RecurrentInputs(query=query, key=key, value=inputs.value, log_decay=inputs.log_decay, beta=inputs.beta)

    def at(self, tokens: slice | Tensor) -> "RecurrentInputs":
        """The inputs of some of the tokens."""
        return RecurrentInputs(
            query=self.query[tokens],
            key=self.key[tokens],
            value=self.value[tokens],
            log_decay=self.log_decay[tokens],
            beta=self.beta[tokens],
            skip=self.skip,
        )
