"""The workers a router knows: which model each serves, which may take a request now, and when that changes."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from router.config import PlacementPolicy, RouterConfig
from router.link import Link, LinkState
from router.placement import Candidate, Placement
from router.prefills import Prefills
from segue.batch.role import Role
from segue.batch.sampling import SamplingDefaults
from segue.errors import ModelNotFound, ServingError, WorkerUnavailable
from segue.ids import RouterId
from segue.wire import WorkerDescription
from segue.wire.channel import PLAIN, TlsConfig


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What requests for one model are validated against: the tightest limits among its workers."""

    name: str
    max_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    defaults: SamplingDefaults


class Fleet:
    """Owns one link per address while entered. A link that fails by our own mistake cancels whoever entered it.

    `prefills` are prefill workers, of which requests are told one; there are no links to those.
    """

    def __init__(
        self, config: RouterConfig, addresses: Sequence[str], prefills: Sequence[str] = (), tls: TlsConfig = PLAIN
    ) -> None:
        self._config = config
        self._tls = tls
        self._placement = Placement(PlacementPolicy(config.placement))
        self._changes: set[asyncio.Future[None]] = set()
        self._group = asyncio.TaskGroup()
        self._running: dict[Link, asyncio.Task[None]] = {}
        self._named = frozenset(addresses)
        self._first = tuple(dict.fromkeys(addresses))
        self.router_id = RouterId(f"router-{uuid.uuid4().hex[:12]}")
        self._first_prefills = tuple(prefills)
        self._end: ServingError | None = None
        self.prefills = Prefills(config, self._group.create_task, self._wake, tls)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self.set_addresses(self._first, self._first_prefills)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running.values():
            task.cancel()
        self.prefills.close()
        await self._group.__aexit__(kind, error, trace)

    def set_addresses(self, addresses: Sequence[str], prefills: Sequence[str] = ()) -> None:
        """Makes these the workers that requests go to. To be called while entered, at every look at the membership.

        A worker that is not named any more gets no new requests. It keeps its session for those it has, and is let go
        of at the first call that finds it without any.
        """
        before, self._named = self._named, frozenset(addresses)
        self.prefills.set_addresses(prefills)
        for link in self.links:
            if not self.takes(link) and link.load == 0:
                self._running.pop(link).cancel()
        linked = {link.address for link in self.links}
        for address in dict.fromkeys(addresses):
            if address not in linked:
                link = Link(address, self.router_id, self._config, self._wake, self._tls, self._has_other)
                self._running[link] = self._group.create_task(link.run())
        if before != self._named:
            self._wake()

    def end(self, error: ServingError) -> None:
        """From now on no request goes on: those that run fail with `error`, and so does `require_going`."""
        self._end = error
        for link in self.links:
            link.fail_all(error)
        self._wake()

    def require_going(self) -> None:
        """Raises what `end` was given."""
        if self._end is not None:
            raise self._end

    def takes(self, link: Link) -> bool:
        """Whether the worker may get new requests, or only finishes those it has."""
        return link.address in self._named

    @property
    def links(self) -> tuple[Link, ...]:
        """All workers with which there is or may be a session, in the order in which they came."""
        return tuple(self._running)

    @property
    def ready(self) -> list[Link]:
        """Links whose session is up and whose worker takes new requests."""
        return [link for link in self.links if link.state is LinkState.READY and self.takes(link) and not link.draining]

    def models(self) -> list[ServedModel]:
        """Every model that some worker has described, also while that worker is away."""
        groups: dict[str, list[WorkerDescription]] = {}
        for link in self.links:
            if link.description is not None:
                groups.setdefault(link.description.model_name, []).append(link.description)
        return [
            ServedModel(
                name=name,
                max_len=min(each.max_len for each in group),
                vocab_size=min(each.vocab_size for each in group),
                eos_token_ids=group[0].eos_token_ids,
                fingerprint=group[0].fingerprint,
                defaults=group[0].defaults,
            )
            for name, group in groups.items()
        ]

    async def model(self, name: str | None) -> ServedModel:
        """The model that `name` (None: whichever there is) means.

        Raises ModelNotFound, or WorkerUnavailable while no worker has said what it serves.
        """
        if not self.models():
            await self.wait_change(self._config.placement_wait_s)
        served = self.models()
        if not served:
            raise WorkerUnavailable("no worker is ready")
        for model in served:
            if name in (None, model.name):
                return model
        raise ModelNotFound(
            f"the model '{name}' does not exist here; served: {', '.join(model.name for model in served)}",
            param="model",
        )

    def pick(
        self,
        model: str,
        affinity: str | None,
        excluded: set[str],
        fingerprint: str | None = None,
        *,
        prompt_here: bool = False,
    ) -> Link | None:
        """A link that may take a request for `model` now, or None. `fingerprint` None: whatever the worker's is.

        `prompt_here`: the worker is to compute the prompt itself, and needs no prefill worker for it.
        """
        now = asyncio.get_running_loop().time()
        able = {
            link.address: link
            for link in self._serving(model, fingerprint)
            if link.breaker.allows(now) and (prompt_here or self.has_prefill(link, now))
        }
        candidates = [Candidate(link.address, link.load) for link in able.values() if link.address not in excluded]
        return able[self._placement.choose(candidates, affinity).address] if candidates else None

    def has_prefill(self, link: Link, now: float) -> bool:
        """Whether prompts of the worker's requests can be computed: by itself, or by a prefill worker that is able."""
        about = link.description
        if about is None or about.role != Role.DECODE:
            return about is not None
        return self.prefills.any_able(about.fingerprint, now)

    async def wait_change(self, timeout_s: float) -> None:
        """Returns when a worker has come or gone, when a breaker would let a probe through, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        breakers = [*(link.breaker for link in self.ready), *(worker.breaker for worker in self.prefills.workers)]
        openings = [at - now for breaker in breakers if (at := breaker.opens_at(now)) is not None]
        change = loop.create_future()
        self._changes.add(change)
        try:
            async with asyncio.timeout(max(0.0, min([timeout_s, *openings]))):
                await change
        except TimeoutError:
            pass
        finally:
            self._changes.discard(change)

    def is_alone(self, link: Link) -> bool:
        """Whether no other worker could go on now with the choices of this one, from their state or without."""
        now = asyncio.get_running_loop().time()
        return not any(
            (_is_decode(link) and _is_decode(other)) or self.has_prefill(other, now)
            for other in self._others(link, now)
        )

    def _has_other(self, link: Link) -> bool:
        """Whether another decode worker could go on with the choices of this one, from their state."""
        return any(_is_decode(other) for other in self._others(link, asyncio.get_running_loop().time()))

    def _others(self, link: Link, now: float) -> list[Link]:
        """Those that may take requests now, and would write the same text."""
        ours = link.description
        assert ours is not None, "who has choices is described"
        serving = self._serving(ours.model_name, ours.fingerprint)
        return [other for other in serving if other is not link and other.breaker.allows(now)]

    def _serving(self, model: str, fingerprint: str | None) -> list[Link]:
        return [
            link
            for link in self.ready
            if (about := link.description) is not None
            and about.model_name == model
            and fingerprint in (None, about.fingerprint)
        ]

    def _wake(self) -> None:
        for change in self._changes:
            if not change.done():
                change.set_result(None)


def _is_decode(link: Link) -> bool:
    """Whether it fetches the state of choices that have left another one, and lets its own go with theirs."""
    return link.description is not None and link.description.role == Role.DECODE
