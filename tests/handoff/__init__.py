"""Tests of prefill and decode apart: the whole path, from a router's request to its last token."""
