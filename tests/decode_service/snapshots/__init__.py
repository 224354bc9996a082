"""Tests of decode_service.snapshots."""
