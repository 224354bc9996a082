"""Tests of decode_service.retraction."""
