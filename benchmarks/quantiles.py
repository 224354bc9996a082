"""Quantiles of a handful of measurements, in milliseconds."""

from collections.abc import Sequence

import numpy as np


def milliseconds(times_s: Sequence[float], quantile: float) -> float:
    """The quantile (0 to 1) of times given in seconds, as milliseconds with two decimals."""
    return round(float(np.quantile(np.asarray(times_s), quantile)) * 1e3, 2)
