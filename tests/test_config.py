"""Configuration: what is wrong is named with its table and key."""

from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from deploy.ray_config import RayConfig
from deploy.settings import ServeConfig
from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from router.config import RouterConfig
from segue.config import EngineConfig, read_toml, section, sections
from segue.errors import ConfigError
from segue.state.snapshot.config import SnapshotConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One field of every kind that a settings table may have."""

    folder: Path
    count: int = 1
    share: float = 0.5
    on: bool = False
    name: str | None = None
    peers: tuple[str, ...] = ()


def test_a_table_becomes_a_dataclass_and_flags_may_be_text() -> None:
    made = section(
        Sample, {"folder": "x", "count": "3", "share": 1, "on": "true", "peers": ["a"], "name": "n"}, "sample"
    )
    assert made == Sample(folder=Path("x"), count=3, share=1.0, on=True, peers=("a",), name="n")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"folder": "x", "cuont": 1}, r"sample\.cuont is not a setting; known are count, folder"),
        ({}, r"sample\.folder is missing"),
        ({"folder": "x", "count": "many"}, r"sample\.count is 'many'"),
        ({"folder": "x", "count": True}, r"sample\.count is True, expected int"),
        ({"folder": "x", "on": 1}, r"sample\.on is 1"),
        ({"folder": "x", "peers": "a"}, r"sample\.peers must be a list"),
        ({"folder": 4}, r"sample\.folder is 4, expected Path"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        section(Sample, table, "sample")


def test_an_unknown_table_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"\[engin\] is not a known table"):
        sections({"engin": {}}, {"engine": EngineConfig})


def test_a_file_that_is_absent_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        read_toml(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = ")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        read_toml(broken)


@pytest.mark.parametrize(
    ("key", "value"),
    [("page_tokens", 0), ("max_running", 0), ("max_len", -1), ("step_tokens", 1), ("kv_dtype", "int8")],
)
def test_impossible_engine_settings_are_refused_by_name(key: str, value: int | str) -> None:
    with pytest.raises(ConfigError, match=key):
        section(EngineConfig, {"model": "m", key: value}, "engine")


@pytest.mark.parametrize("config", [WorkerConfig, TransferConfig, RouterConfig, ServeConfig, RayConfig, SnapshotConfig])
def test_a_wait_that_is_no_number_is_refused_in_every_table(config: type) -> None:
    name = next(field.name for field in fields(config) if field.name.endswith("_s") and field.name != "drain_s")
    with pytest.raises(ConfigError, match=rf"{name} is nan, it must"):
        section(config, {name: float("nan")}, "table")
