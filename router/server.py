"""Runs a router as a process: its socket, its fleet, and an end that finishes what was begun."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence

import uvicorn

from router.admission import Admission
from router.app import build_app
from router.config import RouterConfig
from router.fleet import Fleet
from router.metrics import Metrics
from router.protocol import http_protocol
from router.request_ids import LiveRequests
from router.shell import Shell
from router.snapshots.leftovers import Leftovers
from router.snapshots.parking import Parking
from router.snapshots.running import RunningRequests
from router.text.tokenizer import Tokenizer
from segue.errors import ConfigError, WorkerUnavailable
from segue.wire.channel import PLAIN, TlsConfig

log = logging.getLogger("segue.router")

_BACKLOG = 2048
# Longer than clients and load balancers keep idle connections: the side that reuses them should be the one to close.
_KEEP_ALIVE_S = 75
# After the drain: for answers to say that their request was ended, and for a response's last bytes.
_LAST_WORD_S = 1.0
_CLOSE_S = 1
_DATE_S = 1.0


class _Http(uvicorn.Server):
    """uvicorn ends the process by the signal it caught; here a signal only asks for `stop`.

    It also looks ten times a second whether it should end and whether everybody has left. This one is told.
    """

    def __init__(self, config: uvicorn.Config, departed: asyncio.Event) -> None:
        """`departed` is set whenever a connection has ended."""
        super().__init__(config)
        self._departed = departed
        self._ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def close_door(self) -> None:
        """Gives the port back; connections that were taken stay."""
        if self.started:
            for listening in self.servers:
                listening.close()

    def end(self) -> None:
        """No connection is taken any more; those that are there end when they have been answered."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Until `end`; the date that answers carry is new every second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits until everybody has been answered and has left, `timeout_graceful_shutdown` at most."""
        self.close_door()
        for listening in sockets or ():
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._emptied()
        except TimeoutError:
            unfinished = list(self.server_state.tasks)
            log.warning("stopping with %d answers unfinished", len(unfinished))
            for answering in unfinished:
                answering.cancel()

    async def _emptied(self) -> None:
        state = self.server_state
        while state.tasks:
            await asyncio.wait(state.tasks)
        while state.connections:
            self._departed.clear()
            await self._departed.wait()
        for listening in self.servers:
            await listening.wait_closed()


class Server:
    """One router. `serve` runs until `stop` was called and what runs is finished, or the drain budget is spent.

    What outlasts that is told: an error status, or an error as the last event of a stream that has begun.
    """

    def __init__(
        self,
        config: RouterConfig,
        tokenizer: Tokenizer,
        workers: Sequence[str],
        prefills: Sequence[str] = (),
        tls: TlsConfig = PLAIN,
    ) -> None:
        """Binds the socket; `address` is the host and port that it got. Raises ConfigError when it is taken."""
        self._config = config
        self._socket = _bind(config.host, config.port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        fleet = Fleet(config, workers, prefills, tls)
        self.shell = Shell(
            config=config,
            tokenizer=tokenizer,
            fleet=fleet,
            admission=Admission(config.inflight_max, config.queue_max, config.queue_timeout_s),
            metrics=Metrics(),
            live=LiveRequests(),
            running=RunningRequests(),
            leftovers=Leftovers(fleet, config),
        )
        departed = asyncio.Event()
        self._http = _Http(
            uvicorn.Config(
                build_app(self.shell),
                http=http_protocol(config.client_stall_s, departed.set),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_S,
            ),
            departed,
        )

    def stop(self) -> None:
        """New requests are refused from now on; a second call ends those that still run."""
        if self._stopping.is_set():
            self._hurried.set()
        self.shell.draining = True
        self._stopping.set()

    def give_way(self) -> None:
        """`stop`, with the port free for a successor at once; connections that were taken are served to their end."""
        self.stop()
        self._http.close_door()

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serves; calls `ready` when connections are taken."""
        async with self.shell.fleet, asyncio.TaskGroup() as group:
            beside = [group.create_task(Parking(self.shell).run()), group.create_task(self.shell.leftovers.run())]
            serving = asyncio.create_task(self._http.serve(sockets=[self._socket]))
            draining = asyncio.create_task(self._drain())
            # The socket listens since it was bound: connections wait there until they are taken.
            ready()
            try:
                await serving
            finally:
                for task in (draining, *beside):
                    task.cancel()
                self._http.end()
                await asyncio.gather(serving, draining, return_exceptions=True)

    async def _drain(self) -> None:
        """Ends the HTTP server once it was asked to stop and nothing runs any more; what outlasts the budget fails."""
        await self._stopping.wait()
        log.info("stopping; %d requests are running", len(self.shell.live))
        waits = [asyncio.create_task(self.shell.live.emptied()), asyncio.create_task(self._hurried.wait())]
        await asyncio.wait(waits, timeout=self._config.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if left := len(self.shell.live):
            log.warning("%d requests outlasted the drain", left)
            self.shell.fleet.end(WorkerUnavailable("the router is shutting down before this was done; send it again"))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD_S):
                    await self.shell.live.emptied()
        self._http.end()


async def run_server(
    config: RouterConfig,
    tokenizer: Tokenizer,
    workers: Sequence[str],
    prefills: Sequence[str],
    tls: TlsConfig,
    ready: Callable[[str, int], None],
) -> None:
    """A whole router until SIGTERM or SIGINT. Calls `ready` with host and port when it takes connections."""
    server = Server(config, tokenizer, workers, prefills, tls)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    await server.serve(lambda: ready(*server.address))


def serve_forever(
    config: RouterConfig,
    tokenizer: Tokenizer,
    workers: Sequence[str],
    prefills: Sequence[str],
    tls: TlsConfig,
    ready: Callable[[str, int], None],
) -> None:
    """`run_server` on the faster event loop."""
    import uvloop  # here, because tests and other processes of this package need no second loop implementation

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_server(config, tokenizer, workers, prefills, tls, ready))


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; is another server running there? Choose --port",
            param="port",
        ) from error
    # Connections inherit it. Not every event loop sets it, and without it what follows the head of an answer waits
    # until the client has acknowledged that, which it may delay by 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
