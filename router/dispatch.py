"""One choice from placement to its end: tries workers until one answers, and continues elsewhere when one is lost.

The reader sees one unbroken output. A choice that has sent tokens is continued with those tokens as `emitted`, so no
token is sampled twice; an earlier attempt cannot speak into a later one, because only the newest inbox is read.
It is continued by workers of the fingerprint that began it alone: other weights would write another text. One that has
left its worker is continued from the state that this keeps for it, or from the snapshot in which it was parked, and
without it only if it is lost on its way.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.config import RouterConfig
from router.fleet import Fleet
from router.inbox import Arrivals, Inbox
from router.link import Link, LinkState, WorkerLost
from router.metrics import Metrics
from router.moved_leg import MovedLeg
from router.prefill_leg import PrefillLeg
from router.snapshot_leg import KeptSnapshot, SnapshotLeg
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.errors import DeadlineExceeded, PrefillUnavailable, QueueFull, ServingError, SnapshotError, WorkerUnavailable
from segue.ids import Handle, RequestId, WorkerId
from segue.wire import Ended, GenerateSpec, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSpec:
    """What is asked of the workers for one choice. `deadline` is a time of the running loop's clock.

    With `score_from` the prompt tokens behind that position are scored, on whatever worker puts out the tokens. With
    `snapshot` the choice goes on behind `emitted`, which that snapshot's output is.
    """

    request_id: RequestId
    model: str
    eos_token_ids: tuple[int, ...]
    prompt: tuple[int, ...]
    sampling: SamplingParams
    priority: int
    affinity: str | None
    cache_salt: str
    deadline: float
    score_from: int | None = None
    extension: bytes = b""
    emitted: tuple[int, ...] = ()
    snapshot: KeptSnapshot | None = None


class Dispatch:
    """Runs one choice. `take` gives its news until `ended` is among them; `close` must follow in every case."""

    def __init__(
        self,
        spec: ChoiceSpec,
        fleet: Fleet,
        config: RouterConfig,
        metrics: Metrics,
        discard: Callable[[str], None],
    ) -> None:
        """`discard` is given the ids of snapshots in which the choice was parked and that nobody goes on from."""
        self._spec = spec
        self._metrics = metrics
        self._fleet = fleet
        self._config = config
        self._link: Link | None = None
        self._leg = PrefillLeg(fleet.prefills)
        self._moved = MovedLeg(metrics.switched)
        self._kept = SnapshotLeg(spec.snapshot, discard, metrics)
        self._inbox: Inbox | None = None
        self._attempt = 0
        # Of the worker that has the choice, or had it last: once tokens have come, no other may go on.
        self._fingerprint = ""
        # The same one, as the process that it was then.
        self._worker_id = WorkerId("")
        self._output: list[int] = [*spec.emitted]
        # The same for every try, and nobody else's: one that was lost with its worker keeps no snapshot from the next.
        self._claimant = uuid.uuid4().hex
        # The prompt's scores that are missing.
        self._position, self._position_limit = 0, 0
        if spec.score_from is not None:
            self._position, self._position_limit = spec.score_from + 1, len(spec.prompt)
        self._begun = False
        self._over = False
        self._alarm = asyncio.get_running_loop().call_at(spec.deadline, self._expire)

    @property
    def output(self) -> Sequence[int]:
        """All tokens that were taken, those included that the choice began with."""
        return self._output

    @property
    def placed(self) -> tuple[Link, Inbox] | None:
        """The worker that has the choice now, and where its news come to. None between two workers, and at the end.

        Also where that is not read yet, because its client takes nothing: the handle may be another's by now.
        """
        if self._over or self._link is None or self._inbox is None or self._inbox.settled:
            return None
        return self._link, self._inbox

    @property
    def kept(self) -> SnapshotLeg:
        """What is known of a snapshot that the choice is in, or may be in."""
        return self._kept

    @property
    def over(self) -> bool:
        """Whether nobody waits for its news any more."""
        return self._over

    async def take(self) -> Arrivals:
        """The next news of the choice. Raises what finally stopped it."""
        assert not self._over, "a choice that ended has no news"
        while True:
            if self._inbox is None:
                ended = self._ended_unseen()
                if ended is not None:
                    self._over = True
                    return Arrivals(ended=ended)
                await self._place()
            inbox, link = self._inbox, self._link
            assert inbox is not None, "placing left no inbox"
            assert link is not None, "placing left no link"
            try:
                arrived = await inbox.take()
            except WorkerLost:
                link.breaker.withdraw()
                self._leg.withdraw()
                self._inbox = None
                continue
            except ServingError as error:
                self._blame(link, error)
                self._leg.withdraw()
                raise
            if arrived.token_ids or arrived.scores:
                link.breaker.succeed()
                self._leg.succeed()
                self._moved.succeed()
                self._begun = True
                self._output += arrived.token_ids
                self._position += len(arrived.scores)
            if arrived.ended is None or not self._must_continue(link, inbox, arrived.ended):
                self._over = arrived.ended is not None
                return arrived
            arrived.ended = None
            self._inbox = None
            if arrived.token_ids or arrived.scores:
                return arrived

    async def finish(self, kept: int) -> Usage | None:
        """Ends the output after `kept` tokens. Returns the worker's word on its usage, None if that does not come."""
        self._over = True
        self._leg.withdraw()
        inbox, link = self._inbox, self._link
        if inbox is None or link is None:
            return None
        link.finish(inbox, kept)
        try:
            async with asyncio.timeout(self._config.finish_wait_s):
                while True:
                    arrived = await inbox.take()
                    if arrived.ended is not None:
                        return arrived.ended.usage
        except (TimeoutError, ServingError):
            return None

    def close(self) -> None:
        """Nobody reads any more: a live attempt is cancelled."""
        self._over = True
        self._alarm.cancel()
        self._leg.withdraw()
        self._moved.give_up()
        self._kept.give_up()
        if self._inbox is not None and self._link is not None:
            self._link.cancel(self._inbox)
            self._link.breaker.withdraw()

    def _must_continue(self, link: Link, inbox: Inbox, ended: Ended) -> bool:
        """Whether an attempt ended but the output did not. Raises the error of one that must not be tried again."""
        if ended.reason is FinishReason.MOVED and (not ended.snapshot_id or self._kept.leave(ended.snapshot_id)):
            # It may be long since it said so: whoever reads this waits for its client in between.
            link.draining = link.draining or link.is_still(self._worker_id)
            link.breaker.withdraw()
            self._leg.withdraw()
            if not ended.snapshot_id:
                self._moved.begin(link, inbox, self._worker_id)
            return True
        if ended.reason is FinishReason.CANCELLED:
            self._leg.withdraw()
            # Nobody asked for it from here: the worker drains, or had given this router up.
            return True
        error = ended.error
        if error is None:
            link.breaker.succeed()
            return False
        if self._leg.blamed(error, self._now()) or self._moved.blamed(error):
            link.breaker.withdraw()
            return True
        self._blame(link, error)
        if isinstance(error, WorkerUnavailable):
            return True
        raise error

    def _blame(self, link: Link, error: ServingError) -> None:
        """What an earlier process did is no fault of the one that is there by now."""
        if link.is_still(self._worker_id):
            link.breaker.fail(error, self._now())

    def _ended_unseen(self) -> Ended | None:
        """The end of an output whose every token arrived while the word of its end was lost with its worker."""
        sampling, output = self._spec.sampling, self._output
        if self._scoring:
            return None
        usage = Usage(len(self._spec.prompt), len(output), 0)
        if output and len(output) >= max(sampling.min_tokens, 1):
            stops = set(sampling.stop_token_ids)
            if not sampling.ignore_eos:
                stops.update(self._spec.eos_token_ids)
            if output[-1] in stops:
                return Ended(Handle(0), self._attempt, FinishReason.STOP, usage)
        if len(output) >= sampling.max_tokens:
            return Ended(Handle(0), self._attempt, FinishReason.LENGTH, usage)
        return None

    async def _place(self) -> None:
        """Finds a worker that accepts the choice. Raises the last refusal when none does in time."""
        wait_s = self._config.placement_wait_s
        if self._attempt > 0:
            wait_s = self._config.continuation_grace_s
            # Of one that is parked, or may be, is told when it is known how it goes on.
            if not (self._moved.waiting or self._kept.parking):
                self._metrics.continued()
        give_up_at = self._now() + wait_s
        refusal: ServingError | None = None
        # Of those that cannot go on from a snapshot some might still go on without it.
        refused_by: set[str] = set()
        unable: set[str] = set()
        if self._moved.waiting:
            self._kept.move()
        else:
            self._kept.begin()
        while self._attempt < self._config.attempts_max + self._moved.count + self._kept.count:
            self._require_leave()
            if self._kept.parked and self._is_home_there():
                # Nobody can follow a worker before that has ended, for which it has its own time.
                give_up_at = self._now() + wait_s
            left_s = give_up_at - self._now()
            link = self._pick(refused_by | unable) or self._pick_without(refused_by, left_s)
            if link is None:
                # Whoever has been given a part of its answer waits for room rather than lose the rest.
                if (isinstance(refusal, QueueFull) and not self._begun) or left_s <= 0:
                    break
                deadline_s = self._spec.deadline - self._now()
                await self._fleet.wait_change(min(left_s, deadline_s, self._config.reconnect_wait_s_max))
                refused_by.clear()
                unable.clear()
                continue
            kept = self._kept.offered
            refusal = await self._offer(link)
            if refusal is None:
                return
            if kept is not None and isinstance(refusal, WorkerUnavailable):
                # It may have used the snapshot up before it was lost: then nobody else can go on with the choice.
                give_up_at = max(give_up_at, self._now() + self._config.continuation_grace_s)
            if kept is self._kept.offered:
                (unable if isinstance(refusal, SnapshotError) else refused_by).add(link.address)
        raise refusal or self._nobody()

    def _pick(self, refused_by: set[str]) -> Link | None:
        """A worker that may take the choice now, from what is kept of it if anything is."""
        here = self._scoring or self._moved.waiting or self._kept.offered is not None
        refused = refused_by | self._without_snapshot()
        bound_to = self._fingerprint if self._begun else None
        return self._fleet.pick(self._spec.model, self._spec.affinity, refused, bound_to, prompt_here=here)

    def _pick_without(self, refused_by: set[str], left_s: float) -> Link | None:
        """One that is to compute a parked choice again, when nobody who keeps snapshots is there, or can."""
        if self._kept.offered is None or not self._kept.parking:
            return None
        if left_s > 0 and any(link.keeps_snapshots for link in self._fleet.links):
            return None
        affinity, bound_to = self._spec.affinity, self._fingerprint
        link = self._fleet.pick(self._spec.model, affinity, refused_by, bound_to, prompt_here=self._scoring)
        if link is not None:
            self._kept.go_without()
        return link

    async def _offer(self, link: Link) -> ServingError | None:
        """Offers the choice to one worker; returns a refusal that another worker need not share, raises any other."""
        snapshot = self._kept.offered
        moved = None if snapshot is not None else self._moved.offer(link)
        here = self._scoring or moved is not None or snapshot is not None
        address = "" if here else self._leg.begin(link, self._now())
        if address is None:
            return PrefillUnavailable(f"no prefill worker is ready for worker {link.address}")
        missing = (self._position, self._position_limit) if self._scoring else (0, 0)
        inbox = Inbox(self._attempt, len(self._output), self._spec.sampling.max_tokens, *missing)
        spec = GenerateSpec(
            router_id=self._fleet.router_id,
            request_id=self._spec.request_id,
            attempt=self._attempt,
            prompt=self._spec.prompt,
            emitted=tuple(self._output),
            sampling=self._spec.sampling,
            priority=self._spec.priority,
            deadline_s=self._spec.deadline - self._now(),
            extension=self._spec.extension,
            cache_salt=self._spec.cache_salt,
            prefill_address=address,
            score_from=self._position - 1 if self._scoring else None,
            snapshot_id="" if snapshot is None else snapshot.snapshot_id,
            snapshot_doubtful=snapshot is not None and snapshot.doubtful,
            claimant=self._claimant,
            moved=moved,
        )
        self._attempt += 1
        link.breaker.begin(self._now())
        try:
            restored = await link.generate(spec, inbox)
        except asyncio.CancelledError:
            link.breaker.withdraw()
            self._leg.withdraw()
            raise
        except ServingError as error:
            link.breaker.fail(error, self._now())
            self._leg.withdraw()
            if self._kept.refused(error):
                return error
            if error.client_fault and not isinstance(error, QueueFull):
                raise
            return error
        # Its session has not changed since the link was picked, so this is still the worker that was.
        assert link.description is not None, "a worker is described before it accepts anything"
        self._link, self._inbox = link, inbox
        self._fingerprint, self._worker_id = link.description.fingerprint, link.description.worker_id
        self._begun = self._begun or bool(self._output)
        self._kept.accepted(restored)
        self._moved.accepted(moved)
        self._require_leave()
        return None

    def _is_home_there(self) -> bool:
        """Whether the worker that had the choice last has not ended."""
        link = self._link
        return link is not None and link.state is LinkState.READY and link.is_still(self._worker_id)

    def _without_snapshot(self) -> set[str]:
        """Workers that cannot go on from the snapshot, while that is what the choice goes on from."""
        kept = self._kept.offered
        if kept is None:
            return set()
        if kept.doubtful:
            return {link.address for link in self._fleet.links if not link.keeps_snapshots}
        return {link.address for link in self._fleet.links} - kept.addresses

    @property
    def _scoring(self) -> bool:
        """Whether scores of the prompt are still missing."""
        return self._position < self._position_limit

    def _nobody(self) -> WorkerUnavailable:
        if not self._begun:
            return WorkerUnavailable(f"no worker is ready for the model '{self._spec.model}'")
        return WorkerUnavailable(
            f"the worker that began this output is gone, and none is ready that serves the model '{self._spec.model}' "
            f"with the same weights and settings (fingerprint {self._fingerprint}); send the request again"
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _require_leave(self) -> None:
        """Raises DeadlineExceeded, or what ended the fleet."""
        self._fleet.require_going()
        if self._now() >= self._spec.deadline:
            raise DeadlineExceeded("the request took longer than it was given")

    def _expire(self) -> None:
        if self._inbox is not None:
            self._inbox.expire(DeadlineExceeded("the request took longer than it was given"))
