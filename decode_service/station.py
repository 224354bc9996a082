"""The engine thread's side of a decode worker: carries out commands, steps the engine, and says what is new."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from decode_service.commands import (
    Arrived,
    Asked,
    Bytes,
    CheckpointArrived,
    Collect,
    Command,
    Depart,
    Fail,
    PeerDied,
    Progressed,
    Report,
    SettledTicket,
    Submit,
    WorkerFigures,
)
from decode_service.departures import Departures
from decode_service.intake import Intake, Reply
from decode_service.snapshots.commands import SnapshotDone, WriteSnapshot
from decode_service.snapshots.copying import PeriodicCopies
from decode_service.snapshots.restoring import Restored
from decode_service.snapshots.taking import SnapshotTaking
from kv_transfer.export import Export
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.loading import Loaded
from kv_transfer.plan import Side
from kv_transfer.receiver import Receiver
from kv_transfer.reservations import Reservations
from kv_transfer.sender_words import Granted, SenderEvent, Unpin, Unwanted
from segue.batch.news import EngineNews
from segue.batch.role import Role
from segue.batch.suffix_costs import Rule
from segue.engine import Engine
from segue.errors import ContextTooLong, InvalidRequest, ServingError, SnapshotCapacity
from segue.wire import Cancel, Finish, SnapshotFigures, Transfers

WAIT_S = 0.05
"""How often somebody who waits for a request to have a whole state is looked at while nothing is computed."""


@dataclass(frozen=True, slots=True)
class DecodeNews:
    """What is new for the routers, in engine order, for the senders, and for those who fetch what has left.

    `stuck` means that so much is in quarantine for so long that the worker should be started afresh. `kept_count`
    states of requests that have left are still here.
    """

    engine: Sequence[EngineNews]
    replies: Sequence[Reply] = field(default=())
    stuck: bool = False
    sent: Sequence[SenderEvent] = field(default=())
    kept_count: int = 0


class DecodeStation:
    """Owns the engine, and what comes into it and leaves it. One that computes its prompts itself expects nothing."""

    def __init__(
        self,
        engine: Engine,
        intake: Intake | None,
        config: TransferConfig,
        departures: Departures | None = None,
        taking: SnapshotTaking | None = None,
        copies: PeriodicCopies | None = None,
    ) -> None:
        self._taking, self._copies = taking, copies
        self._config, self._extend_by = config, Rule(config.extend_by)
        self._engine = engine
        self._intake = intake
        self._departures = departures
        self._kept_count = 0
        self._news: list[EngineNews] = []
        self._step = 0
        self._busy = False
        self._told = False

    @staticmethod
    def of(
        loaded: Loaded,
        config: TransferConfig,
        taking: SnapshotTaking | None = None,
        copies: PeriodicCopies | None = None,
    ) -> "DecodeStation":
        """A station for what was loaded, which takes snapshots by `taking` and `copies` of them by policy."""
        engine = loaded.engine
        if loaded.built is None or engine.facts.role is not Role.DECODE:
            return DecodeStation(engine, None, config, taking=taking, copies=copies)
        facts = engine.facts
        reservations = Reservations(loaded.built.pools, time.monotonic, lease_s=config.lease_s)
        side = Side(facts.layouts, facts.page_tokens, facts.window)
        intake = Intake(engine, Receiver(reservations, loaded.built.storage, side))
        export = Export(loaded.built.storage, facts.page_tokens)
        departures = Departures(engine, intake, export, verify=config.verify, keep_s=config.keep_s)
        return DecodeStation(engine, intake, config, departures, taking, copies)

    def apply(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Cancel():
                self._engine.cancel(command.handle, command.attempt)
                self._dismiss(command)
            case Finish():
                self._engine.finish(command.handle, command.attempt, command.kept)
                self._dismiss(command)
            case Report():
                snapshots = SnapshotFigures() if self._taking is None else self._taking.figures
                command.answer.set_result(WorkerFigures(self._engine.status(), self._transfers(), snapshots))
            case WriteSnapshot():
                assert self._taking is not None, "a worker without a snapshot folder takes none"
                self._taking.ask(command)
            case SnapshotDone():
                assert self._taking is not None, "a worker without a snapshot folder has written none"
                self._taking.done(command)
            case Depart() | Collect() | Granted() | Unwanted() | Unpin():
                assert self._departures is not None, f"{command} came to a worker that nobody leaves"
                self._departures.apply(command)
            case _:
                assert self._intake is not None, f"{command} came to a worker that expects no state"
                self._take_in(command, self._intake)
        # Before the next command: it may speak of a request that this one has ended.
        self._note_ended()

    def turn(self) -> DecodeNews | None:
        if self._intake is not None:
            self._intake.expire()
            self._note_ended()
        if self._departures is not None:
            self._departures.expire()
            self._departures.leave()
            self._note_ended()
        # A first token, or a promise to a sender, does not wait for a step; a step waits for no more than one turn.
        if not self._told and (news := self._take_news()) is not None:
            self._busy = self._told = True
            return news
        self._told = False
        # Whoever is too late gives back what it was promised before anybody else is let in.
        self._engine.expire()
        if self._taking is not None:
            self._taking.turn()
        if self._copies is not None:
            self._copies.turn()
        self._note_ended()
        record = self._engine.launch()
        self._note_ended()
        if record is not None:
            news_of_step = self._engine.commit(record)
            self._step = news_of_step.step
            self._news.append(news_of_step)
        self._busy = record is not None
        if self._intake is not None:
            self._intake.call_again()
            # Who was refused may have kept others out, or has itself become this worker's to compute.
            self._busy = not self._intake.grant_promised() or self._busy
            self._note_ended()
        return self._take_news()

    def wait_s(self) -> float | None:
        if self._busy:
            return 0
        if self._taking is not None and self._taking.waiting:
            return WAIT_S
        times = [self._engine.next_deadline(), None if self._intake is None else self._intake.next_expiry()]
        if self._intake is not None and self._intake.stuck_for_s(self._config.quarantine_share):
            times.append(time.monotonic() + self._config.quarantine_s / 10)
        if self._departures is not None:
            times.append(self._departures.next_expiry())
        due = min((at for at in times if at is not None), default=None)
        return None if due is None else max(1e-3, due - time.monotonic())

    def check(self) -> None:
        """Asserts that every pool adds up: what requests hold, and what is promised."""
        self._engine.check()
        if self._intake is not None:
            self._intake.check()

    def _submit(self, command: Submit) -> None:
        if not command.accepted.set_running_or_notify_cancel():
            return  # The caller left before its turn; nobody would ever read the output.
        spec, awaited = command.spec, False
        try:
            if command.restored is not None:
                self._restore(command, command.restored)
            elif not spec.prefill_address and spec.moved is None:
                self._engine.submit(spec, command.handle)
            elif self._intake is None:
                raise InvalidRequest("this worker computes its prompts itself, it takes no state from another one")
            elif spec.moved is not None:
                self._engine.submit(spec, command.handle)
                self._intake.expect(command.handle, spec.attempt, pending=spec.emitted[-1])
                awaited = True
            elif awaited := self._engine.expect(spec, command.handle, self._config.extend_tokens, self._extend_by):
                self._intake.expect(command.handle, spec.attempt)
        except ServingError as error:
            command.accepted.set_exception(error)
        else:
            command.accepted.set_result(awaited)

    def _restore(self, command: Submit, restored: Restored) -> None:
        try:
            news = self._engine.restore(
                command.spec, command.handle, restored.image, restored.output, restored.cached_tokens
            )
        except ContextTooLong as error:
            raise SnapshotCapacity(f"snapshot {command.spec.snapshot_id} does not fit here: {error.message}") from error
        self._news.append(news)

    def _take_in(
        self,
        command: Asked | Progressed | Bytes | Arrived | CheckpointArrived | SettledTicket | PeerDied | Fail,
        intake: Intake,
    ) -> None:
        match command:
            case Fail():
                intake.failed(command)
            case Asked():
                intake.asked(command)
            case Progressed():
                intake.progressed(command)
            case Bytes():
                intake.put(command)
            case Arrived():
                if (news := intake.arrived(command)) is not None:
                    self._news.append(news)
            case CheckpointArrived():
                intake.checkpoint_arrived(command)
            case SettledTicket():
                intake.settled(command.ticket)
            case PeerDied():
                intake.peer_died(command.peer)

    def _note_ended(self) -> None:
        """Ends outside of steps are news, and free what their senders were promised."""
        if ended := self._engine.take_ended():
            self._news.append(EngineNews(self._step, ended=ended))
        if self._intake is not None:
            for one in ended:
                self._intake.ended(one.handle)

    def _dismiss(self, command: Cancel | Finish) -> None:
        """Nobody will come for the state of a request that has left, if it has."""
        if self._departures is not None:
            self._departures.dismiss(command.handle, command.attempt)

    def _transfers(self) -> Transfers:
        figures = Transfers() if self._intake is None else self._intake.figures
        if self._departures is None:
            return figures
        return replace(figures, moved_out=self._departures.moved_out, moved_lost=self._departures.moved_lost)

    def _forget_copies(self, news: Sequence[EngineNews]) -> None:
        """Whatever told of an end: a step, a command, or a token that came from elsewhere."""
        if self._copies is not None:
            for one in news:
                for ended in one.ended:
                    self._copies.ended(ended.handle)

    def _take_news(self) -> DecodeNews | None:
        news = [one for one in self._news if not one.empty]
        self._news = []
        self._forget_copies(news)
        if self._intake is None:
            return DecodeNews(news) if news else None
        replies = self._intake.take_replies()
        stuck = self._intake.stuck_for_s(self._config.quarantine_share) > self._config.quarantine_s
        sent: Sequence[SenderEvent] = ()
        kept_before = self._kept_count
        if self._departures is not None:
            sent, self._kept_count = self._departures.take_events(), self._departures.kept_count
        if not (news or replies or stuck or sent or self._kept_count != kept_before):
            return None
        return DecodeNews(news, replies, stuck, sent, self._kept_count)
