"""Exit codes of a worker process."""

EXIT_OK = 0
EXIT_BROKEN = 70
"""It broke an invariant of its own (EX_SOFTWARE of sysexits); a supervisor starts it afresh."""
