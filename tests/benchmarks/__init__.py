"""Tests of the measuring programs: what they send, read, check and refuse."""
