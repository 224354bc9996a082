"""Which requests run and what the next step computes: pure policy."""
