"""Tests of segue.models."""
