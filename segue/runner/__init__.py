"""From a step plan to sampled tokens."""
