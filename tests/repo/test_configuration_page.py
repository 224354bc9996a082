"""docs/configuration.md lists every setting of every part with its default."""

import dataclasses
import re

import pytest

from decode_service.retraction.config import RetractionConfig
from deploy.ray_config import RayConfig, RoleConfig
from deploy.settings import ServeConfig
from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from router.config import RouterConfig
from segue.config import EngineConfig
from segue.state.snapshot.config import SnapshotConfig
from segue.wire.channel import TlsConfig
from tests.repo.sources import ROOT

PARTS = {
    "serve": ServeConfig,
    "engine": EngineConfig,
    "worker": WorkerConfig,
    "transfer": TransferConfig,
    "retraction": RetractionConfig,
    "snapshot": SnapshotConfig,
    "tls": TlsConfig,
    "router": RouterConfig,
    "ray": RayConfig,
    "both": RoleConfig,
}


@pytest.mark.parametrize("part", PARTS)
def test_the_page_lists_every_setting_with_its_default(part: str) -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    table = page.partition(f"\n## {part}\n")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", table, flags=re.MULTILINE))
    assert listed == {field.name: _default(field) for field in dataclasses.fields(PARTS[part])}


def _default(field: "dataclasses.Field[object]") -> str:
    return "required" if field.default is dataclasses.MISSING else repr(field.default)
