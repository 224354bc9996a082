"""Layers that model families are composed of."""
