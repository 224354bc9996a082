"""Tests of what two processes agree on."""
