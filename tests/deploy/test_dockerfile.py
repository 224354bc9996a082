"""The image is built from what there is."""

import re

from tests.repo.sources import PRODUCT, ROOT

TEXT = (ROOT / "deploy/docker/Dockerfile").read_text()


def test_every_copied_path_exists_and_every_package_is_copied() -> None:
    copied = [path for line in re.findall(r"^COPY ([^-\n].*)$", TEXT, re.MULTILINE) for path in line.split()[:-1]]
    assert copied
    assert not [path for path in copied if not (ROOT / path).exists()]
    assert set(PRODUCT) <= set(copied)
