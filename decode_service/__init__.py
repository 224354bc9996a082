"""The worker process: an engine thread behind a gRPC service."""
