"""Pearson's chi-square test without a statistics package."""

import math
from collections.abc import Sequence


def surprise(counts: Sequence[int], expected: Sequence[float]) -> float:
    """How many standard deviations the statistic lies above its mean (Wilson and Hilferty's normal approximation)."""
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True))
    freedom = len(counts) - 1
    return float(((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)))
