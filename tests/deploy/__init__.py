"""Tests of the command line and process supervision."""
