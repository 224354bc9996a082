"""Copies whole states of requests out to host memory and back; decides nothing about whose."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from decode_service.retraction.backends import choose_backend
from decode_service.retraction.backup import HostCopy, RetractionBackup
from decode_service.retraction.config import BackendName, RetractionConfig
from decode_service.retraction.copies import Copies, DirectCopies, Move, StreamCopies
from decode_service.retraction.cpu_tensor import CpuTensors
from decode_service.retraction.host_pool import HostPool
from decode_service.retraction.memory import HostMemory
from kv_transfer.arena_map import map_arena
from kv_transfer.digest import digest_contents, zero_tail
from kv_transfer.plan import Side, TransferPlan, make_plan
from segue.batch.backups import Backup
from segue.errors import ConfigError, DigestMismatch
from segue.handoff import Part, StateDigest, Terms, UnitRow
from segue.state.needs import window_pages_max
from segue.state.pool import PoolCounts
from segue.state.recurrent import SlotStates
from segue.state.spec import ComponentName, ModelState, uses_ssm_state
from segue.state.storage import Storage
from segue.state.tables import StateTables

logger = logging.getLogger(__name__)


class RetractionStore:
    """Host memory of one worker (segue.batch.backups.BackupStore). Every method runs on the thread that computes."""

    def __init__(
        self,
        config: RetractionConfig,
        state: ModelState,
        storage: Storage,
        slots: SlotStates,
        page_tokens: int,
        memory: HostMemory,
        copies: Copies,
    ) -> None:
        self._verify, self._dropped = config.verify, config.dropped
        self._recurrent = uses_ssm_state(state)
        self._storage = storage
        self._slots = slots
        self._page_tokens = page_tokens
        self._side = Side(tuple(storage.layouts.values()), page_tokens, state.window)
        self._memory = memory
        self._copies = copies
        self._backups: set[RetractionBackup] = set()

    def save(self, tables: StateTables, depth: int) -> RetractionBackup | None:
        """See BackupStore. What is saved is what a handoff at `depth` would send to a worker that holds nothing."""
        plan = self._plan(depth)
        rows = _rows(tables, plan)
        self._require_depth(tables, depth)
        room = self._memory.alloc([(row.component, len(row.units)) for row in rows])
        if room is None:
            return None
        self._clear_tails(rows, depth)
        digests = self._digests(rows, plan) if self._verify else ()
        copies = {
            row.component: HostCopy(row.component, row.first, row.stop, extents)
            for row, extents in zip(rows, room, strict=True)
        }
        backup = RetractionBackup(
            depth=depth,
            full=copies.get(ComponentName.FULL),
            window=copies.get(ComponentName.WINDOW),
            mamba_cpu=copies.get(ComponentName.RECURRENT),
            digests=digests,
            end=self._copies.save([_move(row, copies[row.component]) for row in rows]),
            recurrent=self._recurrent,
            cpu_copy_carries_mamba=self._storage.cpu_copy_carries_mamba,
        )
        self._backups.add(backup)
        return backup

    def restore(self, backup: Backup, tables: StateTables) -> None:
        """See BackupStore. Nothing is cleared in the units afterwards."""
        ours = self._ours(backup)
        copies = {copy.component: copy for copy in ours.copies}
        rows = _rows(tables, self._plan(ours.depth))
        assert [row.component for row in rows] == list(copies), "tables and backup are not of the same model"
        if (window := ours.window) is not None:
            held = [page is not None for page in tables.window[: window.stop]]
            assert held == ours.in_window, "the window pages are not those of the backup"
        moves = [_move(row, copies[row.component]) for row in rows]
        ours.end = self._copies.restore(
            [move for move in moves if move.component is not self._dropped],
            [move for move in moves if move.component is self._dropped],
        )

    def require_whole(self, backup: Backup, tables: StateTables) -> None:
        """See BackupStore. Once the copy has finished and the slot has been received."""
        ours = self._ours(backup)
        assert ours.copied, "a copy that is under way is not whole"
        if not ours.digests:
            return
        self._require_depth(tables, ours.depth)
        plan = self._plan(ours.depth)
        found = self._digests(_rows(tables, plan), plan)
        for saved, restored, one in zip(ours.digests, found, plan.contents(Part.STATE), strict=True):
            if saved != restored:
                raise DigestMismatch(
                    f"{one.component.value} positions [{one.start}, {one.stop}) came back from host memory with digest "
                    f"{restored.value}, {saved.value} was saved"
                )

    def free(self, backup: Backup) -> None:
        ours = self._ours(backup)
        assert ours.copied, "host memory is given back under a copy"
        for copy in ours.copies:
            self._memory.free(copy.component, copy.extents)
        self._backups.remove(ours)

    def finish(self) -> None:
        self._copies.finish()

    def counts(self) -> tuple[PoolCounts, ...]:
        return self._memory.counts()

    def check(self) -> None:
        """Asserts that exactly what the backups lie in is held."""
        self._memory.check((copy.component, copy.extents) for backup in self._backups for copy in backup.copies)

    def _digests(self, rows: Sequence[UnitRow], plan: TransferPlan) -> tuple[StateDigest, ...]:
        """Of what every rank has, be it shared or not."""
        return digest_contents(self._storage, rows, plan.contents(Part.STATE), every_copy=True)

    def _plan(self, depth: int) -> TransferPlan:
        assert depth > 0, "there is no state before the first token"
        return make_plan(Terms(depth, held_tokens=0), self._side, self._side)

    def _ours(self, backup: Backup) -> RetractionBackup:
        assert isinstance(backup, RetractionBackup)
        assert backup in self._backups, "a backup was given back before"
        return backup

    def _require_depth(self, tables: StateTables, depth: int) -> None:
        """The slot, if there is one, is a whole state at `depth`."""
        if tables.slot is not None:
            found = self._slots.materialized(tables.slot).depth
            assert found == depth, f"the recurrent state stands at {found}, the backup is of {depth}"

    def _clear_tails(self, rows: Sequence[UnitRow], depth: int) -> None:
        """What lies past `depth` in the last pages may be left over from another tenant."""
        last = (depth - 1) // self._page_tokens
        for row in rows:
            if row.component is not ComponentName.RECURRENT and row.stop == last + 1:
                zero_tail(self._storage, row.component, cast(int, row.units[-1]), depth - last * self._page_tokens)


def retraction_store(
    config: RetractionConfig,
    model_name: str,
    state: ModelState,
    storage: Storage,
    slots: SlotStates,
    page_tokens: int,
) -> RetractionStore:
    """The store of one worker, with all of its memory. On the thread that computes.

    Raises ConfigError for a backend that does not fit the model, and for more host memory than there is.
    """
    name = choose_backend(config, model_name, state)
    if config.dropped is not None:
        if config.dropped not in storage.layouts:
            raise ConfigError(
                f"retraction.test_drop is '{config.dropped}', which model '{model_name}' does not have",
                param="test_drop",
            )
        logger.warning(
            "FOR TESTS ONLY: retraction.test_drop is '%s': requests that were retracted lose that state and go on with "
            "wrong tokens",
            config.dropped,
        )
    arena_map = map_arena(storage)
    device = storage.arena.device
    # Units with what every rank has of them.
    whole = [
        replace(arena_map.part(component), unit_bytes=sum(part.unit_bytes for part in arena_map.ranks(component)))
        for component in storage.layouts
    ]
    memory: HostMemory
    match name:
        case BackendName.HOST_POOL:
            window_pages = 0 if state.window is None else window_pages_max(state.window, 0, page_tokens)
            memory = HostPool(config.host_bytes, whole, window_pages, device)
        case BackendName.CPU_TENSOR:
            sizes = {part.component: part.unit_bytes for part in whole}
            memory = CpuTensors(config.host_bytes, sizes, device)
    logger.info("retraction: backend %s, %d bytes of host memory", name.value, memory.arena.numel())
    copies = (StreamCopies if storage.arena.is_cuda else DirectCopies)(storage, arena_map, memory.arena)
    return RetractionStore(config, state, storage, slots, page_tokens, memory, copies)


def _rows(tables: StateTables, plan: TransferPlan) -> list[UnitRow]:
    """Where the state of a plan lies, in component order."""
    rows = []
    for piece in plan.state():
        match piece.component:
            case ComponentName.FULL:
                units: Sequence[int | None] = tables.full[piece.first : piece.stop]
            case ComponentName.WINDOW:
                units = tables.window[piece.first : piece.stop]
            case ComponentName.RECURRENT:
                units = (tables.slot,)
        assert len(units) == piece.stop - piece.first, f"the table of {piece.component} ends before the state does"
        assert None not in units, f"a unit of {piece.component} that the state needs is not held"
        rows.append(UnitRow(piece.part, piece.component, piece.first, tuple(units)))
    return rows


def _move(row: UnitRow, copy: HostCopy) -> Move:
    return Move(row.component, cast(tuple[int, ...], row.units), copy.extents)
