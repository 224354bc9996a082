"""Workers of several tensor-parallel ranks, as real processes."""
