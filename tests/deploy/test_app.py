"""What a RayService asks our builders for is built as the configuration says, or refused with the reason."""

from pathlib import Path

import pytest

from deploy.app import build_workers
from segue.errors import ConfigError


def config(folder: Path, text: str) -> str:
    file = folder / "segue.toml"
    file.write_text(text)
    return str(file)


def replicas(config_file: str, role: str) -> int | None:
    """How many replicas the application of a role asks for."""
    count: int | None = build_workers({"config": config_file, "role": role})._bound_deployment.num_replicas
    return count


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_without_any_replicas_in_the_file_there_is_one_of_each_half(tmp_path: Path, role: str) -> None:
    assert replicas(config(tmp_path, ""), role) == 1


def test_a_role_without_replicas_is_refused_with_the_roles_that_have_some(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"both.*no replicas.*prefill, decode"):
        replicas(config(tmp_path, ""), "both")
    with pytest.raises(ConfigError, match=r"decode.*no replicas.*\(both\)"):
        replicas(config(tmp_path, "[both]\nreplicas = 2\n"), "decode")


def test_an_unknown_role_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'router'"):
        replicas(config(tmp_path, ""), "router")
