"""The life of a request as a table of moves; any other move is our bug."""

from enum import StrEnum


class Phase(StrEnum):
    """Where a request stands on its worker."""

    WAITING = "waiting"
    """Queued; owns nothing."""
    EXTENDING = "extending"
    """Owns pages and a slot; some known tokens are not computed yet (prefill, or recompute of a continuation)."""
    AWAITING = "awaiting"
    """Its prompt is computed by another worker; owns nothing, or from its turn on a promise of all it can need."""
    DECODING = "decoding"
    """Everything but the pending token is computed; one token a step."""
    RETRACTED = "retracted"
    """Off the device, to be brought back from host memory, or recomputed: memory was short, or it came that way."""
    HANDING_OVER = "handing_over"
    """Its state is for another worker, or a snapshot; it stands still and keeps it until that has it."""
    FINISHED = "finished"
    """Ended by itself or by the router's Finish; owns nothing."""
    ABORTED = "aborted"
    """Ended by cancel, deadline or refusal; owns nothing."""


MOVES: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        (Phase.WAITING, Phase.EXTENDING),
        (Phase.WAITING, Phase.AWAITING),
        (Phase.WAITING, Phase.RETRACTED),
        (Phase.WAITING, Phase.FINISHED),
        (Phase.WAITING, Phase.ABORTED),
        (Phase.EXTENDING, Phase.DECODING),
        (Phase.EXTENDING, Phase.WAITING),
        (Phase.EXTENDING, Phase.FINISHED),
        (Phase.EXTENDING, Phase.ABORTED),
        (Phase.EXTENDING, Phase.HANDING_OVER),
        (Phase.AWAITING, Phase.DECODING),
        (Phase.AWAITING, Phase.FINISHED),
        (Phase.AWAITING, Phase.ABORTED),
        (Phase.AWAITING, Phase.RETRACTED),
        (Phase.HANDING_OVER, Phase.FINISHED),
        (Phase.HANDING_OVER, Phase.ABORTED),
        (Phase.DECODING, Phase.FINISHED),
        (Phase.DECODING, Phase.ABORTED),
        (Phase.DECODING, Phase.RETRACTED),
        (Phase.DECODING, Phase.HANDING_OVER),
        (Phase.HANDING_OVER, Phase.DECODING),
        (Phase.RETRACTED, Phase.DECODING),
        (Phase.RETRACTED, Phase.EXTENDING),
        (Phase.RETRACTED, Phase.AWAITING),
        (Phase.RETRACTED, Phase.FINISHED),
        (Phase.RETRACTED, Phase.ABORTED),
    }
)


def move(old: Phase, new: Phase) -> Phase:
    """The new phase; asserts that the table allows the move."""
    assert (old, new) in MOVES, f"a request cannot go from {old} to {new}"
    return new
