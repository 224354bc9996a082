"""Tests of the repository itself: what STYLE and the docs promise about every file."""
