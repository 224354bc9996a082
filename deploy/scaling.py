"""How many replicas of a worker there should be, from what they have to do; pure policy, scales nothing itself."""

import math
from collections.abc import Mapping
from typing import Any

PRESSURE = "pressure"
"""The figure every worker replica reports: its requests that have not ended, queued ones included."""


def replicas_wanted(pressures: Mapping[Any, float], target: float) -> int:
    """Enough replicas for each to have `target` requests. A replica that reported nothing yet adds nothing."""
    assert target > 0, "a replica must be meant to have some requests"
    return max(1, math.ceil(sum(pressures.values()) / target))


def pressure_policy(context: Any) -> tuple[int, dict[str, Any]]:  # noqa: ANN401  Ray imports this by name; we import no Ray
    """`replicas_wanted` in the form Serve asks for; Serve applies bounds and delays."""
    pressures = (context.aggregated_metrics or {}).get(PRESSURE, {})
    if not pressures:
        # Nobody has reported since the controller began: that is no reason to change anything.
        return context.target_num_replicas, {}
    return replicas_wanted(pressures, context.config.target_ongoing_requests), {}
