"""The three recurrences, and the two traits by which they differ."""

from enum import Enum


class Rule(Enum):
    """S_t = Diag(a_t) S_{t-1} + k_t d_t^T and o_t = S_t^T q_t for all; a = exp(log decay).

    d_t = beta_t (v_t - S_{t-1}^T (a_t * k_t)) where the rule corrects what the matrix holds under a key, else beta_t
    v_t. For Mamba2 q is C, k is B, v is x and beta is dt.
    """

    GATED_DELTA = "gdn"
    KIMI_DELTA = "kda"
    MAMBA2 = "mamba2"

    @property
    def vector_decay(self) -> bool:
        """Whether each key channel decays by itself, not all channels of a head alike."""
        return self is Rule.KIMI_DELTA

    @property
    def corrected(self) -> bool:
        """Whether a token writes the difference to what its key reads."""
        return self is not Rule.MAMBA2
