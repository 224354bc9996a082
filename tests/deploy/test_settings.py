"""Settings come from a file and from flags; whatever nobody knows is refused by name."""

from dataclasses import fields
from pathlib import Path

import pytest

import deploy
from deploy.settings import Settings, bundled_model, load_settings
from segue.batch.role import Role
from segue.config import read_toml
from segue.errors import ConfigError

DEFAULT_FILE = Path(deploy.__path__[0]) / "config" / "default.toml"


def test_without_anything_the_bundled_model_is_served() -> None:
    settings = load_settings(None, [])
    assert settings.engine.model == bundled_model()
    assert (settings.engine.model / "config.json").is_file()


def test_assignments_override_the_file_in_order(tmp_path: Path) -> None:
    file = tmp_path / "segue.toml"
    file.write_text("[engine]\nmax_running = 4\npage_tokens = 32\n[router]\nport = 9\n")
    settings = load_settings(file, ["engine.max_running=5", "engine.max_running=6", "engine.deterministic=true"])
    assert settings.engine.max_running == 6
    assert settings.engine.page_tokens == 32
    assert settings.engine.deterministic
    assert settings.router.port == 9


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("engine.speed=9", "engine.speed"),
        ("motor.speed=9", "motor"),
        ("engine.max_running", "section.key=value"),
        ("engine.max_running=many", "engine.max_running"),
        ("serve.start_s=0", "serve.start_s"),
        ("both.replicas=-1", "replicas"),
        ("both.replicas_max=2", "replicas_max"),
        ("prefill.replicas=1", "decode.replicas is 0"),
        ("decode.replicas=2", "prefill.replicas is 0"),
        ("decode.node_labels=zone", "zone"),
        ("ray.lease_s=0.6", "lease_s"),
        ("worker.silence_s=0.5", "silence_s"),
        ("worker.port=70000", "worker.port"),
        ("transfer.extend_by=never", "transfer.extend_by"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(assignment: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(None, [assignment])


@pytest.mark.parametrize(
    ("assignments", "counts"),
    [
        ([], {Role.PREFILL: 1, Role.DECODE: 1}),
        (["prefill.cpus=2"], {Role.PREFILL: 1, Role.DECODE: 1}),
        (["both.replicas=2"], {Role.BOTH: 2}),
        (["prefill.replicas=2", "decode.replicas=3"], {Role.PREFILL: 2, Role.DECODE: 3}),
        (["both.replicas=1", "prefill.replicas=1", "decode.replicas=1"], dict.fromkeys(Role, 1)),
    ],
)
def test_replicas_are_what_was_given_or_one_of_each_half(assignments: list[str], counts: dict[Role, int]) -> None:
    settings = load_settings(None, assignments)
    assert {role: settings.replicas(role).replicas for role in settings.roles} == counts
    assert settings.prefill.cpus == settings.replicas(Role.PREFILL).cpus


def test_half_of_a_pair_beside_role_both_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prefill\.replicas is 1 and decode\.replicas is 0"):
        load_settings(None, ["both.replicas=1", "prefill.replicas=1"])


def test_an_unknown_table_of_a_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "segue.toml"
    file.write_text("[moter]\nspeed = 9\n")
    with pytest.raises(ConfigError, match="moter"):
        load_settings(file, [])


def test_the_default_file_says_every_default_and_nothing_else() -> None:
    written = read_toml(DEFAULT_FILE)
    settings = load_settings(DEFAULT_FILE, [])
    assert settings == load_settings(None, [])
    for part in fields(Settings):
        table = written[part.name]
        assert isinstance(table, dict)
        expected = {field.name for field in fields(getattr(settings, part.name))} - {"model"}
        assert set(table) == expected, part.name
