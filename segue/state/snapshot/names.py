"""What files and folders of a snapshot folder are called, and which strings are ids at all."""

import re
import secrets

FOLDER_LOCK = ".lock"
MANIFEST = "manifest.json"
CLAIM = "claim"
WRITER_LOCK = "writer.lock"
MARKER_COMING = "committing"
MARKER = "committed"

_ID = re.compile(r"[0-9a-f]{32}")


def new_id() -> str:
    """128 random bits: nobody guesses one, and two are never alike."""
    return secrets.token_hex(16)


def is_id(name: str) -> bool:
    """Asked before any path is made of it."""
    return _ID.fullmatch(name) is not None
