"""Snapshots of running requests: their whole state out of an engine, durable, and into another one."""
