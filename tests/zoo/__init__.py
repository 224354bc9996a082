"""Tests of segue.zoo."""
