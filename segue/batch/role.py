"""What an engine does for its requests: all of it, or one half."""

from enum import StrEnum


class Role(StrEnum):
    """A decode worker can also compute prompts itself; a prefill worker never decodes."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"
