"""Tests of segue.runner."""
