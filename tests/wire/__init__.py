"""Tests of what travels between router and worker."""
