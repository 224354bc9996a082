"""Checkpoint folders: opening, checking, digesting, and building the model they describe."""
