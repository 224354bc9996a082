"""Memory that peers write their self-test into, lot by lot; never holds anybody's state."""

import hashlib

import torch

LOT_BYTES = 16 << 10
_LOTS = 64


class Scratch:
    """Lots of one registered buffer. A lot whose writer was never heard of again is never used again."""

    def __init__(self, device: torch.device) -> None:
        self.memory = torch.zeros(_LOTS * LOT_BYTES, dtype=torch.uint8, device=device)
        self._free = list(range(_LOTS))

    def take(self) -> int | None:
        """Offset of a cleared lot, None when all are out."""
        if not self._free:
            return None
        offset = self._free.pop() * LOT_BYTES
        self.memory[offset : offset + LOT_BYTES].zero_()
        self._finish()
        return offset

    def give_back(self, offset: int) -> None:
        """The lot has no writer any more."""
        lot = offset // LOT_BYTES
        assert lot not in self._free, f"scratch lot {lot} is given back twice"
        self._free.append(lot)

    def fill(self, offset: int, seed: bytes) -> None:
        """Writes the pattern of `seed` into a lot."""
        self.memory[offset : offset + LOT_BYTES] = pattern(seed).to(self.memory.device)
        self._finish()

    def shows(self, offset: int, seed: bytes) -> bool:
        """Whether a lot holds exactly the pattern of `seed`."""
        return torch.equal(self.memory[offset : offset + LOT_BYTES].cpu(), pattern(seed))

    def _finish(self) -> None:
        """Peers read and write these bytes without regard to the stream that was told to change them."""
        if self.memory.is_cuda:
            torch.cuda.current_stream(self.memory.device).synchronize()


def pattern(seed: bytes) -> torch.Tensor:
    """LOT_BYTES bytes that no stale memory shows by chance."""
    return torch.frombuffer(bytearray(hashlib.shake_128(seed).digest(LOT_BYTES)), dtype=torch.uint8)
