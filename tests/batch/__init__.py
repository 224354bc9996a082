"""Tests of segue.batch."""
