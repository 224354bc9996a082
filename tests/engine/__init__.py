"""Tests of segue.engine."""
