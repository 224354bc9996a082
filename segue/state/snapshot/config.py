"""Settings of snapshots: where they are kept, who may have written them, how many, and for how long."""

from dataclasses import dataclass

from segue.config import require_above_zero, require_at_least_one, require_not_negative
from segue.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotConfig:
    """One folder of snapshots, which several processes, also of several machines, may share.

    `folder` empty turns snapshots off. `key_file` names a file with a secret of at least 16 bytes: snapshots are then
    signed with it, and others refused. `bytes_max`, `count_max` and `expire_s` bound what is kept. A claim stands for
    `claim_s` unless it is renewed. A worker has images of states in host memory, on their way to the folder or from it,
    of `host_bytes` at most. Running requests are copied every `every_tokens` positions, prompt included, or `every_s`
    seconds (0: not).
    """

    folder: str = ""
    key_file: str = ""
    bytes_max: int = 16 << 30
    count_max: int = 1024
    expire_s: float = 86400.0
    claim_s: float = 60.0
    host_bytes: int = 8 << 30
    every_tokens: int = 0
    every_s: float = 0.0

    def __post_init__(self) -> None:
        require_at_least_one("snapshot.", self, "bytes_max", "count_max", "host_bytes")
        require_above_zero("snapshot.", self, "expire_s", "claim_s")
        require_not_negative("snapshot.", self, "every_tokens", "every_s")
        if self.key_file and not self.folder:
            raise ConfigError(
                "snapshot.key_file is set and snapshot.folder is not: there is nothing to sign", param="key_file"
            )
