"""What a list says of one snapshot, in a worker's folder and wherever that is told; reads nothing itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSummary:
    """One line of a list. `claimed_by` is whoever is continuing it; None: nobody.

    `refused` is the code of the error that reading its marker or its claim gives; None: both can be read. Of what could
    not be read nothing is known: that is None. `kind` is that of the manifest, `created_s` Unix time.
    """

    snapshot_id: str
    bytes: int
    request_id: str | None = None
    kind: str | None = None
    created_s: float | None = None
    computed: int | None = None
    tp_size: int | None = None
    claimed_by: str | None = None
    refused: str | None = None

    @property
    def age_order(self) -> tuple[float, str]:
        """Sorts a list by age, the oldest first, and those whose age is not known before them."""
        return self.created_s or 0.0, self.snapshot_id
