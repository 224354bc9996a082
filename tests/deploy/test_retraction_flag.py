"""The flag that forces retraction may stand alone, and a nonsensical interval is refused by the setting's name."""

import pytest

from deploy.cli import _assignments, _parser, main
from deploy.exits import EXIT_CONFIG


@pytest.mark.parametrize(
    ("flag", "interval"), [(["--test-retract-interval"], "3"), (["--test-retract-interval", "7"], "7")]
)
def test_the_flag_alone_means_every_third_step(flag: list[str], interval: str) -> None:
    args = _parser().parse_args(["decode", *flag])
    assert f"retraction.test_interval={interval}" in _assignments(args)


def test_a_negative_interval_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The command sets it for its process.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert main(["decode", "--test-retract-interval", "-1"]) == EXIT_CONFIG
    assert "retraction.test_interval is -1" in capsys.readouterr().err
