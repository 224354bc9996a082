"""How many ranks each worker gets: from the flags of serve, from those of one worker, and from a role's own table."""

from pathlib import Path

import pytest

from deploy.cli import _assignments, _parser
from deploy.settings import load_settings
from segue.batch.role import Role


@pytest.mark.parametrize(
    ("line", "prefill", "decode"),
    [
        (["serve"], 1, 1),
        (["serve", "--tp", "2"], 2, 2),
        (["serve", "--tp", "2", "--decode-tp", "4"], 2, 4),
        (["serve", "--prefill-tp", "2"], 2, 1),
        (["prefill", "--tp", "4"], 4, 2),
        (["decode", "--tp", "4"], 2, 4),
    ],
)
def test_flags_say_how_many_ranks_share_a_worker(line: list[str], prefill: int, decode: int, tmp_path: Path) -> None:
    args = _parser().parse_args(line)
    file = None
    if line[0] != "serve":
        # What a worker's own flag says is stronger than the file that all of them read.
        file = tmp_path / "segue.toml"
        file.write_text("[prefill]\nreplicas = 1\ntp = 2\n[decode]\nreplicas = 1\ntp = 2\n")
    settings = load_settings(file, _assignments(args))
    assert settings.engine_of(Role.PREFILL).tp == prefill
    assert settings.engine_of(Role.DECODE).tp == decode
