"""Tests of real processes end to end."""
