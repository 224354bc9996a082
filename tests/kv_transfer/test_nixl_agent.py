"""The NIXL agent does what the library leaves out: damaged metadata and repeated introductions harm nobody."""

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import numpy as np
import pytest
import torch

from kv_transfer.nixl_agent import NixlAgent, NixlConfig
from segue.errors import ConfigError, ServingError, TransferRefused
from segue.peering import metadata_digest
from segue.state.regions import Regions

WAIT_S = 30.0
BLOCKS = np.array([[0, 512, 256], [1024, 0, 128]], dtype=np.int64)


class Party:
    """An agent over 4 KiB."""

    def __init__(self) -> None:
        self.arena = torch.randint(1, 256, (4096,), dtype=torch.uint8)
        self.scratch = torch.zeros(64, dtype=torch.uint8)
        self.agent = NixlAgent(f"party-{uuid4().hex[:8]}", Regions([self.arena]), self.scratch, NixlConfig())


@pytest.fixture
def pair() -> Iterator[tuple[Party, Party]]:
    ours, theirs = Party(), Party()
    theirs.agent.expect()
    yield ours, theirs
    for party in (ours, theirs):
        party.agent.close()


def writes(ours: Party, theirs: Party) -> bool:
    """Whether a write arrives, and nothing beside it changes."""
    expected = theirs.arena.clone()
    for source, target, size in BLOCKS.tolist():
        expected[target : target + size] = ours.arena[source : source + size]
    ours.agent.write(theirs.agent.endpoint, BLOCKS, "pages").result(WAIT_S)
    return torch.equal(theirs.arena, expected)


def test_a_write_puts_every_block_in_its_place(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    ours.agent.connect(theirs.agent.endpoint).result(WAIT_S)
    assert writes(ours, theirs)


def test_a_write_of_nothing_has_settled_at_once(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    assert ours.agent.write(theirs.agent.endpoint, BLOCKS[:0], "nothing").result(0) is None


def test_damaged_metadata_is_refused_and_a_known_peer_stays_reachable(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    whole = theirs.agent.endpoint
    ours.agent.connect(whole).result(WAIT_S)
    with pytest.raises(TransferRefused, match="arrived damaged"):
        ours.agent.connect(replace(whole, metadata=whole.metadata[:-40])).result(WAIT_S)
    assert writes(ours, theirs)


def test_metadata_that_the_library_refuses_is_a_typed_error(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    cut = theirs.agent.endpoint.metadata[:-40]
    broken = replace(theirs.agent.endpoint, metadata=cut, metadata_digest=metadata_digest(cut))
    refused = ours.agent.connect(broken)
    with pytest.raises(TransferRefused, match="does not accept"):
        refused.result(WAIT_S)


def test_a_peer_that_introduces_itself_twice_stays_reachable(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    for _ in range(2):
        ours.agent.connect(theirs.agent.endpoint).result(WAIT_S)
    assert writes(ours, theirs)


def test_metadata_under_another_name_is_refused(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    with pytest.raises(TransferRefused, match="belongs to"):
        ours.agent.connect(replace(theirs.agent.endpoint, agent="somebody")).result(WAIT_S)


def test_a_write_to_a_peer_that_is_not_known_is_a_typed_error(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    with pytest.raises(ServingError, match="pages"):
        ours.agent.write(theirs.agent.endpoint, BLOCKS, "pages").result(WAIT_S)
    ours.agent.disconnect(theirs.agent.endpoint.agent).result(WAIT_S)


def test_a_write_reaches_every_region_from_every_region() -> None:
    """As many regions on one side as ranks, another number on the other."""
    parties = []
    for count in (2, 3):
        regions = Regions([torch.randint(1, 256, (512,), dtype=torch.uint8) for _ in range(count)])
        name = f"party-{uuid4().hex[:8]}"
        parties.append((NixlAgent(name, regions, torch.zeros(64, dtype=torch.uint8), NixlConfig()), regions))
    (ours, source), (theirs, target) = parties
    theirs.expect()
    ours.connect(theirs.endpoint).result(WAIT_S)
    expected = [tensor.clone() for tensor in target.tensors]
    blocks = []
    for to in range(3):
        for by in range(2):
            place = 128 * by
            blocks.append([source.starts[by] + 64 * to, target.starts[to] + place, 64])
            expected[to][place : place + 64] = source.tensors[by][64 * to : 64 * to + 64]
    try:
        ours.write(theirs.endpoint, np.array(blocks, dtype=np.int64), "pages").result(WAIT_S)
        assert all(torch.equal(one, other) for one, other in zip(target.tensors, expected, strict=True))
    finally:
        ours.close()
        theirs.close()


def test_a_block_outside_the_peers_arena_never_reaches_the_library(pair: tuple[Party, Party]) -> None:
    ours, theirs = pair
    with pytest.raises(AssertionError):
        ours.agent.write(theirs.agent.endpoint, np.array([[0, 4095, 2]], dtype=np.int64), "pages")


def test_transports_without_tcp_are_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="without tcp"):
        NixlConfig(ucx_tls="cma")
