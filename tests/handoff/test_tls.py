"""With certificates, workers and routers talk only to those who show one of the same authority."""

from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.host import Host
from kv_transfer.hosting.config import TransferConfig
from prefill_service.host import PrefillHost
from segue.errors import ConfigError, WorkerUnavailable
from segue.wire.channel import PLAIN, TlsConfig
from segue.wire.client import WorkerClient
from tests.decode_service.router_end import RouterEnd
from tests.handoff.pair import QUICK, alone, answers, engine_config, loading
from tests.handoff.test_equality import requests
from tests.support.certificates import certificates


async def test_a_pair_with_certificates_serves_and_turns_others_away(hybrid: Path, tmp_path: Path) -> None:
    ours, theirs = certificates(tmp_path / "ours"), certificates(tmp_path / "theirs")
    transfer = TransferConfig(transports="grpc", verify=True)
    prefill, decode = PrefillHost(QUICK, transfer, tls=ours), Host(QUICK, transfer, tls=ours)
    await prefill.start(loading(engine_config(hybrid, "prefill")))
    await decode.start(loading(engine_config(hybrid, "decode")))
    try:
        for stranger in (PLAIN, theirs):
            client = WorkerClient(decode.address, stranger)
            with pytest.raises(WorkerUnavailable):
                await client.status(5.0)
            await client.close()
        asked = requests(7, (9, 40))
        async with RouterEnd(decode.address, ours) as router, router.attach() as stream:
            apart = await answers(router, stream, [replace(one, prefill_address=prefill.address) for one in asked])
        assert apart == await alone(hybrid, asked)
    finally:
        await decode.stop()
        await prefill.stop()


def test_half_of_what_is_needed_is_refused() -> None:
    with pytest.raises(ConfigError, match="certificate and key only"):
        TlsConfig(certificate="own.pem", key="own.key")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pem")
    with pytest.raises(ConfigError, match=r"absent\.pem"):
        WorkerClient("127.0.0.1:9", TlsConfig(certificate=absent, key=absent, authority=absent))
