"""Of the transports that could carry state, the best comes first, and messages always remain."""

from dataclasses import replace

from kv_transfer.choice import candidates
from segue.handoff import TransportName
from segue.ids import WorkerId
from segue.peering import ArenaMap, Introduction, MemoryRegion, NixlEndpoint, ProcessIdentity

LOCAL, NIXL, GRPC = TransportName.LOCAL, TransportName.NIXL, TransportName.GRPC


def worker(pid: int, device: str | None = "cpu") -> Introduction:
    region = MemoryRegion(0, 1, device or "", 0)
    return Introduction(
        worker_id=WorkerId(f"w{pid}"),
        protocol_version=1,
        fingerprint=(),
        tp_size=1,
        arena=ArenaMap(1, ()),
        process=ProcessIdentity("boot", 1, 1, 1, pid, 1),
        nixl=NixlEndpoint(f"a{pid}", b"", b"", (region,), region) if device else None,
    )


def test_two_processes_with_nixl_use_it() -> None:
    assert candidates(worker(1), worker(2)) == (NIXL, GRPC)


def test_within_one_process_bytes_are_copied() -> None:
    assert candidates(worker(1), replace(worker(1), worker_id=WorkerId("other"))) == (LOCAL, NIXL, GRPC)


def test_nixl_needs_both_ends() -> None:
    assert candidates(worker(1), worker(2, None)) == (GRPC,)
    assert candidates(worker(1, None), worker(2)) == (GRPC,)


def test_host_and_device_memory_of_two_processes_exchange_messages() -> None:
    assert candidates(worker(1, "cuda"), worker(2)) == (GRPC,)
