"""Counter-based random numbers for sampling: a pure function of seed, choice, output position and token id; no state.

The hash is SplitMix64 (Steele, Lea and Flood, 2014: a Weyl sequence through a 64-bit finalizer) with the finalizer
constants of Stafford's "Mix13". Seed, choice and position are hashed one after another into the row key; the token id
steps the Weyl sequence that starts at that key. So a draw depends neither on the batch nor on which part of the
vocabulary a process holds.
"""

import numpy as np
import numpy.typing as npt

from segue.batch.step import IntArray

UINT64_MASK = 2**64 - 1
WEYL_STEP = 0x9E3779B97F4A7C15
MIX_FIRST = 0xBF58476D1CE4E5B9
MIX_SECOND = 0x94D049BB133111EB
# 52 bits and a half keep a uniform strictly between 0 and 1 in float64, so no draw is infinite.
UNIFORM_BITS = 52


def row_key(seed: int, choice: int, position: int) -> int:
    """The 64-bit key of one token to sample; `position` counts output tokens, those of a continuation included."""
    return _mix(_mix(_mix(seed) + choice) + position)


def gumbel(key: int, token_ids: IntArray) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise per token id: the token of the greatest logit + noise is a draw from the softmax."""
    noise = uniform(key, token_ids)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def uniform(key: int, token_ids: IntArray) -> npt.NDArray[np.float64]:
    """Numbers strictly between 0 and 1, one per token id."""
    bits = hashes(key, token_ids)
    bits >>= _UNUSED_BITS
    drawn = bits.astype(np.float64)
    drawn += 0.5
    drawn *= 2.0**-UNIFORM_BITS
    return drawn


def hashes(key: int, token_ids: IntArray) -> npt.NDArray[np.uint64]:
    """The 64 random bits of each token id under this key."""
    bits = token_ids.astype(np.uint64)
    bits *= _STEP
    bits += np.uint64((key + WEYL_STEP) & UINT64_MASK)
    bits ^= bits >> _SHIFT_FIRST
    bits *= _FIRST
    bits ^= bits >> _SHIFT_SECOND
    bits *= _SECOND
    bits ^= bits >> _SHIFT_LAST
    return bits


def _mix(value: int) -> int:
    bits = (value + WEYL_STEP) & UINT64_MASK
    bits = ((bits ^ (bits >> 30)) * MIX_FIRST) & UINT64_MASK
    bits = ((bits ^ (bits >> 27)) * MIX_SECOND) & UINT64_MASK
    return bits ^ (bits >> 31)


# numpy scalars are slow to make; a short row's draw would cost twice as much.
_UNUSED_BITS = np.uint64(64 - UNIFORM_BITS)
_STEP, _FIRST, _SECOND = np.uint64(WEYL_STEP), np.uint64(MIX_FIRST), np.uint64(MIX_SECOND)
_SHIFT_FIRST, _SHIFT_SECOND, _SHIFT_LAST = np.uint64(30), np.uint64(27), np.uint64(31)
