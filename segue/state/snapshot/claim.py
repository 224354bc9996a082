"""The right to continue a snapshot: at most one process has it at a time, and it ends unless renewed."""

import secrets
from dataclasses import replace

from segue.errors import SnapshotNotFound
from segue.state.snapshot.claim_record import (
    OWNER_LENGTH_MAX,
    UNCLAIMED,
    ClaimRecord,
    claim_bytes,
    read_claim,
    write_claim,
)
from segue.state.snapshot.disk import disk_errors, remove_folder
from segue.state.snapshot.ground import Ground, claimed, is_committed, withdraw
from segue.state.snapshot.names import CLAIM, is_id
from segue.state.snapshot.spent import spend


class Claim:
    """Held from `claim` until `release`, `consume`, or `until_s`, whichever comes first; `renew` puts that off.

    A claim that has run out is still good as long as nobody else has taken the snapshot over.
    """

    def __init__(self, ground: Ground, snapshot_id: str, record: ClaimRecord) -> None:
        self._ground = ground
        self._record = record
        self.snapshot_id = snapshot_id

    @property
    def owner(self) -> str:
        return self._record.owner

    @property
    def until_s(self) -> float:
        """Unix time."""
        return self._record.until_s

    def renew(self) -> None:
        """Raises SnapshotClaimed when another has it now, SnapshotNotFound when it is gone, SnapshotFailed."""
        with self._ground.lock.held():
            self._require_mine()
            renewed = replace(self._record, until_s=self._ground.clock() + self._ground.config.claim_s)
            self._write(claim_bytes(renewed))
            self._record = renewed

    def keep(self) -> None:
        """Renews it when half of its time is over. To be called again and again by who is long about something."""
        if self.until_s - self._ground.clock() < self._ground.config.claim_s / 2:
            self.renew()

    def release(self) -> None:
        """Gives the snapshot back, whole; of a claim that is no more this does nothing. Raises SnapshotFailed."""
        with self._ground.lock.held():
            if self._is_mine():
                self._write(UNCLAIMED)

    def consume(self) -> None:
        """The snapshot is used up: invisible by one step, then removed. Raises what `renew` does.

        A note stays for its claimant, if one was named (see spent.py). Only when this has returned may the request go
        on: whatever it raises, somebody else may continue the snapshot.
        """
        folder = self._ground.root / self.snapshot_id
        with self._ground.lock.held():
            self._require_mine()
            with disk_errors(f"cannot use up snapshot {self.snapshot_id}"):
                if self._record.claimant is not None:
                    spend(self._ground, self.snapshot_id, self._record.claimant)
                else:
                    withdraw(folder)
        remove_folder(folder)

    def _require_mine(self) -> None:
        current = self._current()
        if current is not None and current.token != self._record.token:
            raise claimed(self.snapshot_id, current)
        if current is None:
            raise SnapshotNotFound(f"snapshot {self.snapshot_id} is not claimed by {self.owner} any more")

    def _is_mine(self) -> bool:
        current = self._current()
        return current is not None and current.token == self._record.token

    def _current(self) -> ClaimRecord | None:
        """Whoever has the claim, run out or not; None also when the snapshot is gone."""
        folder = self._ground.root / self.snapshot_id
        with disk_errors(f"cannot read the claim of snapshot {self.snapshot_id}"):
            return read_claim(folder / CLAIM, self._ground.config.claim_s) if is_committed(folder) else None

    def _write(self, raw: bytes) -> None:
        with disk_errors(f"cannot write the claim of snapshot {self.snapshot_id}"):
            write_claim(self._ground.root / self.snapshot_id / CLAIM, raw)


def take_claim(ground: Ground, snapshot_id: str, owner: str, claimant: str | None) -> Claim:
    """Raises SnapshotClaimed naming the owner, SnapshotNotFound or SnapshotFailed."""
    assert claimant is None or is_id(claimant), "a claimant is named as snapshots are"
    assert 0 < len(owner) <= OWNER_LENGTH_MAX, "an owner has a name, and not a long one"
    with ground.lock.held():
        ground.require_unclaimed(snapshot_id, claimant)
        record = ClaimRecord(owner, secrets.token_hex(16), ground.clock() + ground.config.claim_s, claimant)
        claim = Claim(ground, snapshot_id, record)
        with disk_errors(f"cannot write the claim of snapshot {snapshot_id}"):
            write_claim(ground.root / snapshot_id / CLAIM, claim_bytes(record))
    return claim
