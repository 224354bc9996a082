"""segue/v1 is what `make proto` makes of proto/ today."""

import subprocess
import sys
from pathlib import Path

from tests.repo.sources import GENERATED, ROOT, files


def test_the_generated_code_is_fresh(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "proto/generate.py", "--out", str(tmp_path)], cwd=ROOT, check=True)
    fresh = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    committed = [path for path in files() if path.startswith(GENERATED) and path != f"{GENERATED}__init__.py"]
    assert sorted(fresh) == committed
    assert not [path for path in committed if (ROOT / path).read_bytes() != fresh[path]]


def test_make_proto_runs_the_same_program() -> None:
    assert "proto/generate.py" in (ROOT / "Makefile").read_text()
