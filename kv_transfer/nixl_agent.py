"""The one NIXL agent of a process and the one thread that may touch it: registers, connects, writes and pumps.

What the library does not do is done here. It never reports that a peer is silent, so callers keep their own clocks. It
makes progress only when called, so the thread pumps even when this process only receives. A peer's metadata is checked
and an old entry removed before it is added, because a damaged or repeated one spoils what was known.
"""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from kv_transfer.blocks import Blocks, byte_count, check_bounds
from segue.errors import ConfigError, PeerLost, ServingError, TransferFailed, TransferRefused
from segue.peering import MemoryRegion, NixlEndpoint, metadata_digest
from segue.state.regions import Regions

T = TypeVar("T")
Places: TypeAlias = tuple[MemoryRegion, ...]
"""Memory of one process, by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlConfig:
    """`ucx_tls` lists UCX transports, empty for the library's choice. The rest is how often the thread looks.

    A write of this process is looked at after `poll_min_s`, then less and less often up to `poll_max_s`. While a peer
    may write here, the thread pumps every `receive_s`, otherwise every `idle_s`.
    """

    ucx_tls: str = ""
    poll_min_s: float = 0.0001
    poll_max_s: float = 0.002
    receive_s: float = 0.001
    idle_s: float = 0.01
    start_s: float = 30.0

    def __post_init__(self) -> None:
        if self.ucx_tls and not {"tcp", "all"} & set(self.ucx_tls.split(",")):
            raise ConfigError(
                f"ucx_tls is {self.ucx_tls!r}; without tcp two hosts cannot connect, add it", param="ucx_tls"
            )


@dataclass(slots=True)
class _Flight:
    """A posted write. `handle` is never looked at again once the library has answered for it."""

    agent: str
    handle: Any
    what: str
    done: "Future[None]"


class NixlAgent:
    """One agent over one arena, whose regions are registered for life. Every method may be called from any thread."""

    def __init__(self, name: str, arena: Regions, scratch: torch.Tensor, config: NixlConfig) -> None:
        """`name` must be new for every start of the process.

        Raises ConfigError when the library is not installed or cannot start here, or device memory is of a kind that
        peers cannot write.
        """
        if arena.cuda_devices:
            _require_plain_memory()
        self._config = config
        self._arena = tuple(_region(tensor, start) for tensor, start in zip(arena.tensors, arena.starts, strict=True))
        self._scratch = (_region(scratch),)
        # Registered memory must outlive the agent: a peer that writes to freed memory corrupts or kills this process.
        self._memory = (arena, scratch)
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._flights: list[_Flight] = []
        self._expected = 0
        self._opened: Future[NixlEndpoint] = Future()
        # Ends only with what broke the thread; whoever owns the process must watch it.
        self.broken: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(name,), name="nixl", daemon=True)
        self._thread.start()
        self.endpoint = self._opened.result(config.start_s)

    def connect(self, peer: NixlEndpoint) -> "Future[None]":
        """Makes the peer's memory writable. Ends with TransferRefused when its metadata is damaged or not accepted."""
        return self._call(lambda: self._connect(peer))

    def disconnect(self, agent: str) -> "Future[None]":
        """Forgets a peer; unknown ones are fine. Only for a peer that nothing is being written to."""
        return self._call(lambda: self._forget(agent))

    def drain(self) -> "Future[None]":
        """Ends once what peers wrote, and this machine had received before the call, lies where it belongs."""

        def progress() -> None:
            # Without a thread of its own the library takes in all that its sockets hold before it answers.
            self._agent.get_new_notifs()

        return self._call(progress)

    def write(self, peer: NixlEndpoint, blocks: Blocks, what: str) -> "Future[None]":
        """Posts a write from arena to arena; settles as `transport.Link.write` says."""
        check_bounds(blocks, self.endpoint.arena_bytes, peer.arena_bytes)
        return self._write(peer, (self.endpoint.arena, peer.arena), blocks, what)

    def write_scratch(self, peer: NixlEndpoint, blocks: Blocks, what: str) -> "Future[None]":
        """Posts a write from scratch to scratch."""
        check_bounds(blocks, self.endpoint.scratch.bytes, peer.scratch.bytes)
        return self._write(peer, (self._scratch, (peer.scratch,)), blocks, what)

    def expect(self) -> None:
        """A peer may write here from now on; balanced by `unexpect`."""
        self._commands.put(lambda: self._count(1))

    def unexpect(self) -> None:
        """One expected peer is done."""
        self._commands.put(lambda: self._count(-1))

    def close(self) -> None:
        """Ends the thread and the agent. Writes that have not settled end with TransferFailed."""
        self._commands.put(None)
        self._thread.join(self._config.start_s)

    # The thread's own side

    def _run(self, name: str) -> None:
        try:
            _, scratch = self._memory
            if scratch.is_cuda:
                # UCX looks for the device that is current on the thread which calls it.
                torch.cuda.set_device(scratch.device)
            library, agent = _open(name, self._config, (*self._arena, *self._scratch))
            metadata = agent.get_agent_metadata()
        except (ImportError, RuntimeError, OSError) as error:
            self._opened.set_exception(ConfigError(f"NIXL cannot start here: {error}"))
            return
        self._agent, self._library = agent, library
        self._opened.set_result(NixlEndpoint(name, metadata, metadata_digest(metadata), self._arena, *self._scratch))
        try:
            self._pump()
        except BaseException as error:
            self.broken.set_exception(error)
            raise
        finally:
            for flight in self._flights:
                flight.done.set_exception(TransferFailed(f"{flight.what}: this process is shutting down"))
        # The thread that made the agent ends it too.
        del self._agent, agent

    def _pump(self) -> None:
        wait_s = self._config.poll_min_s
        while True:
            try:
                command = self._commands.get(timeout=wait_s)
            except queue.Empty:
                wait_s = min(2 * wait_s, self._longest_wait())
            else:
                if command is None:
                    return
                command()
                wait_s = self._config.poll_min_s
            self._agent.get_new_notifs()
            self._poll()

    def _longest_wait(self) -> float:
        if self._flights:
            return self._config.poll_max_s
        return self._config.receive_s if self._expected else self._config.idle_s

    def _call(self, action: Callable[[], T]) -> "Future[T]":
        done: Future[T] = _promised()

        def command() -> None:
            try:
                result = action()
            except ServingError as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._commands.put(command)
        return done

    def _count(self, change: int) -> None:
        self._expected += change
        assert self._expected >= 0, "more peers are done than were expected"

    def _connect(self, peer: NixlEndpoint) -> None:
        peer.require_whole()
        self._forget(peer.agent)
        try:
            found = self._agent.add_remote_agent(peer.metadata)
        except self._library.errors as error:
            raise TransferRefused(f"NIXL does not accept the metadata of {peer.agent}: {error}") from error
        if (name := found.decode() if isinstance(found, bytes) else str(found)) != peer.agent:
            self._forget(name)
            raise TransferRefused(f"the NIXL metadata of {peer.agent} belongs to {name}")

    def _forget(self, agent: str) -> None:
        try:
            self._agent.remove_remote_agent(agent)
        except self._library.errors:
            # It was not known, or its process is gone: either way nothing of it is left.
            return

    def _write(self, peer: NixlEndpoint, regions: tuple[Places, Places], blocks: Blocks, what: str) -> "Future[None]":
        done: Future[None] = _promised()
        if byte_count(blocks) == 0:
            done.set_result(None)
            return done
        self._commands.put(lambda: self._post(peer, regions, blocks, what, done))
        return done

    def _post(
        self,
        peer: NixlEndpoint,
        regions: tuple[Places, Places],
        blocks: Blocks,
        what: str,
        done: "Future[None]",
    ) -> None:
        source, target = regions
        try:
            handle = self._agent.initialize_xfer(
                "WRITE",
                self._agent.get_xfer_descs(_descriptors(source, blocks[:, 0], blocks[:, 2]), _kind(source[0])),
                self._agent.get_xfer_descs(_descriptors(target, blocks[:, 1], blocks[:, 2]), _kind(target[0])),
                peer.agent,
            )
            state = self._agent.transfer(handle)
        except self._library.errors as error:
            done.set_exception(self._error(peer.agent, what, error))
            return
        flight = _Flight(peer.agent, handle, what, done)
        if not self._ended(flight, state):
            self._flights.append(flight)

    def _poll(self) -> None:
        for flight in list(self._flights):
            try:
                state = self._agent.check_xfer_state(flight.handle)
            except self._library.errors as error:
                self._flights.remove(flight)
                self._release(flight)
                flight.done.set_exception(self._error(flight.agent, flight.what, error))
                continue
            if self._ended(flight, state):
                self._flights.remove(flight)

    def _ended(self, flight: _Flight, state: str) -> bool:
        if state == "PROC":
            return False
        self._release(flight)
        if state == "DONE":
            flight.done.set_result(None)
        else:
            flight.done.set_exception(TransferFailed(f"{flight.what} to {flight.agent}: NIXL says {state}"))
        return True

    def _release(self, flight: _Flight) -> None:
        try:
            self._agent.release_xfer_handle(flight.handle)
        except self._library.errors:
            # The library keeps what it cannot free yet, and frees it with the agent.
            return

    def _error(self, agent: str, what: str, error: Exception) -> ServingError:
        if isinstance(error, self._library.lost):
            return PeerLost(f"{what}: the connection to {agent} broke ({error})")
        return TransferFailed(f"{what} to {agent}: {error}")


@dataclass(frozen=True, slots=True)
class _Library:
    """The library's error classes, which share no base of their own."""

    errors: tuple[type[Exception], ...]
    lost: tuple[type[Exception], ...]


def _open(name: str, config: NixlConfig, regions: tuple[MemoryRegion, ...]) -> tuple[_Library, Any]:
    if config.ucx_tls:
        # UCX reads its settings from the environment and from nowhere else.
        os.environ["UCX_TLS"] = config.ucx_tls
    # Imported late: it takes a moment, must come after torch (which brings CUDA), and may not be installed.
    import nixl._api as api
    import nixl._bindings as bindings

    errors = tuple(kind for kind in vars(bindings).values() if isinstance(kind, type) and issubclass(kind, Exception))
    lost = (bindings.nixlRemoteDisconnectError,)
    try:
        agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
        for region in regions:
            memory = [(region.address, region.bytes, region.device_index, "")]
            agent.register_memory(memory, _kind(region))
    except errors as error:
        raise RuntimeError(str(error)) from error
    return _Library(errors, lost), agent


def _require_plain_memory() -> None:
    """Mapped segments can be opened by no other process: writes into them fall back to a path 3,000 times slower, and a
    late one kills the process.
    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(name, "").lower():
            raise ConfigError(f"{name} sets expandable_segments, which NIXL cannot write into; leave it out")


def _promised() -> "Future[Any]":
    """A future that its reader cannot cancel: what it stands for happens all the same."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _descriptors(places: Places, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Address, length and device of every run of bytes, each of which lies within one region."""
    starts = np.array([region.offset for region in places], dtype=np.int64)
    at = np.searchsorted(starts, offsets, side="right") - 1
    within = offsets - starts[at]
    assert bool((within + sizes <= np.array([region.bytes for region in places])[at]).all()), "a block across regions"
    rows = np.empty((len(offsets), 3), dtype=np.uint64)
    rows[:, 0] = np.array([region.address for region in places], dtype=np.uint64)[at] + within.astype(np.uint64)
    rows[:, 1] = sizes
    rows[:, 2] = np.array([region.device_index for region in places], dtype=np.uint64)[at]
    return rows


def _kind(region: MemoryRegion) -> str:
    return "DRAM" if region.device == "cpu" else "VRAM"


def _region(memory: torch.Tensor, offset: int = 0) -> MemoryRegion:
    device, size = memory.device, memory.numel() * memory.element_size()
    return MemoryRegion(memory.data_ptr(), size, device.type, device.index or 0, offset)
