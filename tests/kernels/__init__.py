"""Tests of segue.kernels."""
