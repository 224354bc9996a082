"""Tensor parallelism: what rank 0 tells the other ranks of its worker, and what all of them compute together."""
