"""Attention over paged keys and values: one implementation for decoding rows, one for extending ones."""
