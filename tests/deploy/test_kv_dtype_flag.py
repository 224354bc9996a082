"""Every command that starts workers takes the type that keys and values are stored in, and refuses an unknown one."""

import pytest

from deploy.cli import main
from deploy.exits import EXIT_CONFIG


@pytest.mark.parametrize("command", [["worker"], ["prefill"], ["decode"], ["serve", "--no-ray"]])
def test_an_unknown_type_ends_the_command_and_names_the_setting(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command sets it for its process.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert main([*command, "--kv-dtype", "int8"]) == EXIT_CONFIG
    assert "engine.kv_dtype is 'int8', it must be one of fp8" in capsys.readouterr().err
