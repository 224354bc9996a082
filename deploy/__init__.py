"""The command line, process supervision and default configuration."""
