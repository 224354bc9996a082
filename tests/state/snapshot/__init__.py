"""Snapshots on disk: what is written comes back, and what is not whole is refused."""
