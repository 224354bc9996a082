"""Tests, one folder per package; they are sentences."""
