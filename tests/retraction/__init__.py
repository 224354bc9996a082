"""Mistakes in retraction that the tests beside engine and handoff must see."""
