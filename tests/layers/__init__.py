"""Tests of segue.layers."""
