"""State as messages, where memory cannot be written from afar: cuts blocks out of one arena, puts them into another.

The receiver writes its own memory, so it alone decides: bytes that no standing promise covers are dropped.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from kv_transfer.blocks import Blocks, batches
from segue.errors import TransferFailed, TransferRefused
from segue.handoff import BlockBytes, Ticket, UnitRow
from segue.peering import ArenaMap
from segue.state.regions import Regions

MESSAGE_BYTES = 1 << 20


def cut_messages(regions: Regions, ticket: Ticket, blocks: Blocks) -> Iterator[BlockBytes]:
    """Messages of at most MESSAGE_BYTES that carry the blocks' source bytes; cut only when the next one is wanted."""
    for batch in batches(blocks, MESSAGE_BYTES):
        payload = b"".join([regions.piece(source, size).cpu().numpy().data for source, _, size in batch.tolist()])
        yield BlockBytes(ticket, tuple(batch[:, 1].tolist()), tuple(batch[:, 2].tolist()), payload, zlib.crc32(payload))


def put_message(regions: Regions, arena_map: ArenaMap, message: BlockBytes, rows: Sequence[UnitRow]) -> None:
    """Writes a message's bytes where it says, if `rows` (what its ticket may write now) cover every byte of it.

    Raises TransferFailed for bytes that arrived damaged and TransferRefused for bytes that are not for these rows;
    nothing is written then.
    """
    if sum(message.lengths) != len(message.payload) or len(message.lengths) != len(message.offsets):
        raise TransferRefused(f"{message.ticket}: blocks of {sum(message.lengths)} bytes, {len(message.payload)} came")
    if zlib.crc32(message.payload) != message.crc32:
        raise TransferFailed(f"{message.ticket}: {len(message.payload)} bytes arrived damaged")
    _require_covered(message, _covered(arena_map, rows))
    payload = np.frombuffer(message.payload, dtype=np.uint8)
    taken = 0
    for offset, length in zip(message.offsets, message.lengths, strict=True):
        piece, place = payload[taken : taken + length], regions.piece(offset, length)
        if place.is_cuda:
            place.copy_(torch.from_numpy(piece.copy()))
        else:
            place.numpy()[:] = piece
        taken += length


def _covered(arena_map: ArenaMap, rows: Sequence[UnitRow]) -> Blocks:
    """The rows' bytes as [count, 2]: start and end of each run, in order, neighbours joined."""
    starts = [np.empty((0, 2), dtype=np.int64)]
    for row in rows:
        units = np.array([unit for unit in row.units if unit is not None], dtype=np.int64)
        for part in arena_map.ranks(row.component):
            begin = part.base + units * part.unit_bytes
            starts.append(np.stack((begin, begin + part.unit_bytes), axis=1))
    runs = np.concatenate(starts)
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    if len(runs) == 0:
        return runs
    heads = np.flatnonzero(np.concatenate(([True], runs[1:, 0] != runs[:-1, 1])))
    tails = np.concatenate((heads[1:], [len(runs)])) - 1
    return np.stack((runs[heads, 0], runs[tails, 1]), axis=1)


def _require_covered(message: BlockBytes, runs: Blocks) -> None:
    starts = np.array(message.offsets, dtype=np.int64)
    ends = starts + np.array(message.lengths, dtype=np.int64)
    at = np.searchsorted(runs[:, 0], starts, side="right") - 1
    if bool((at < 0).any()) or bool((ends > runs[at, 1]).any()):
        raise TransferRefused(f"{message.ticket}: bytes came for memory that it was not promised")
