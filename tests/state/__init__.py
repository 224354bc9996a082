"""Tests of segue.state."""
