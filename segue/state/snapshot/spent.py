"""Notes of snapshots that nobody may continue or write any more: files `ID.CLAIMANT.spent`, which say for whom.

A claimant is one continuation of one request, however often it is tried. Whose try was lost with its worker learns here
that it was the one that used the snapshot up. Whoever looks or writes here to decide something holds the folder's lock.
"""

import os
from pathlib import Path

from segue.state.snapshot.disk import create, sync_folder
from segue.state.snapshot.ground import Ground, is_committed
from segue.state.snapshot.names import MARKER, is_id

NOTE = "spent"
# Longer than any request that could still ask.
KEPT_S = 3600.0


def spend(ground: Ground, snapshot_id: str, claimant: str) -> None:
    """Makes a snapshot invisible for good and leaves the note, by one step that needs no room. Raises OSError."""
    folder = ground.root / snapshot_id
    # The note is the marker itself, so a full disk keeps nobody from it.
    (folder / MARKER).rename(_note(ground, snapshot_id, claimant))
    sync_folder(ground.root)
    sync_folder(folder)


def forbid(ground: Ground, snapshot_id: str, claimant: str) -> bool:
    """A snapshot that is not complete never will be. False when it is, or when another claimant has used it up.

    Raises OSError.
    """
    if is_committed(ground.root / snapshot_id):
        return False
    if claimants := spent_for(ground, snapshot_id):
        return claimants == {claimant}
    os.close(create(_note(ground, snapshot_id, claimant)))
    sync_folder(ground.root)
    return True


def spent_for(ground: Ground, snapshot_id: str) -> set[str]:
    """The claimants of whom there is a note, at most one. Raises OSError."""
    assert is_id(snapshot_id), "no pattern is made of anything else"
    return {path.name.split(".")[1] for path in ground.root.glob(f"{snapshot_id}.*.{NOTE}")}


def remove_old_notes(ground: Ground) -> None:
    """Removes what nobody will ask for any more. Raises OSError."""
    for path in ground.root.glob(f"*.*.{NOTE}"):
        snapshot_id, claimant, *_ = path.name.split(".")
        if is_id(snapshot_id) and is_id(claimant) and ground.clock() - path.lstat().st_ctime > KEPT_S:
            path.unlink(missing_ok=True)


def _note(ground: Ground, snapshot_id: str, claimant: str) -> Path:
    assert is_id(claimant), "no path is made of anything else"
    return ground.root / f"{snapshot_id}.{claimant}.{NOTE}"
