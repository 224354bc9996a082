"""Keys may be in files, so that nobody sees them in a list of processes."""

from pathlib import Path

import pytest

from router.config import RouterConfig
from segue.errors import ConfigError


def test_a_key_is_what_its_file_says_without_the_end_of_the_line(tmp_path: Path) -> None:
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text("secret\n")
    other.write_text("another")
    config = RouterConfig(api_key_file=str(file), admin_key_file=str(other))
    assert (config.api_key, config.admin_key) == ("secret", "another")
    assert RouterConfig(api_key_file=str(file), api_key="secret").api_key == "secret"
    with pytest.raises(ConfigError, match="different keys"):
        RouterConfig(admin_key_file=str(file), admin_key="another")


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"router\.admin_key_file"):
        RouterConfig(admin_key_file=str(file))


def test_one_key_for_both_is_refused_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret")
    with pytest.raises(ConfigError, match="every client"):
        RouterConfig(api_key="secret", admin_key_file=str(file))
