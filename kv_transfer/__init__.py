"""What moves between workers, and what they must agree on first."""
