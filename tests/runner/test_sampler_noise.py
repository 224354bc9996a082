"""The noise: uniform, unrelated between neighbouring counters, the same wherever it is drawn."""

import numpy as np
import pytest

from segue.runner.noise import MIX_FIRST, MIX_SECOND, WEYL_STEP, gumbel, hashes, row_key, uniform
from tests.runner.chi_square import surprise

ALL_IDS = np.arange(2_048, dtype=np.int64)


def test_the_noise_never_changes_between_versions() -> None:
    # A continuation may run on a worker of another build: these values are part of the protocol.
    assert row_key(0, 0, 0) == 2_558_736_989_570_252_433
    assert hashes(row_key(7, 1, 3), np.array([0, 5])).tolist() == [
        13_249_239_092_290_094_047,
        14_143_968_605_059_459_786,
    ]


def test_the_hash_is_split_mix_64() -> None:
    # The first outputs of the published generator for seed 0.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert hashes(0, np.arange(3)).tolist() == published


@pytest.mark.parametrize("argument", ["seed", "choice", "position", "token"])
def test_flipping_any_bit_of_any_argument_flips_half_the_hash(argument: str) -> None:
    flips = []
    for base in range(64):
        known = {"seed": base * 977, "choice": base, "position": base * 31, "token": base * 5}
        for bit in range(16):
            changed = known | {argument: known[argument] ^ (1 << bit)}
            flips.append((_hash(**known) ^ _hash(**changed)).bit_count())
    # 1,024 samples of a binomial of mean 32 and deviation 4: the mean deviates by 0.125.
    assert abs(np.mean(flips) - 32) < 0.6
    assert min(flips) > 12
    assert max(flips) < 52


@pytest.mark.parametrize("axis", ["seed", "choice", "position", "token"])
def test_neighbouring_counters_draw_uniform_numbers(axis: str) -> None:
    steps = 4_096
    if axis == "token":
        drawn = uniform(row_key(3, 0, 0), np.arange(steps))
    else:
        keys = [row_key(**({"seed": 3, "choice": 0, "position": 0} | {axis: step})) for step in range(steps)]
        drawn = np.array([uniform(key, np.array([17]))[0] for key in keys])
    counts = np.bincount((drawn * 64).astype(int), minlength=64)
    assert surprise(counts.tolist(), [steps / 64] * 64) < 4
    # Successive numbers are independent, too: pairs fill an 8 x 8 grid evenly.
    pairs = (drawn[0::2] * 8).astype(int) * 8 + (drawn[1::2] * 8).astype(int)
    assert surprise(np.bincount(pairs, minlength=64).tolist(), [steps / 128] * 64) < 4


def test_gumbel_noise_has_the_mean_and_variance_of_its_distribution() -> None:
    drawn = np.concatenate([gumbel(row_key(1, 0, position), ALL_IDS) for position in range(100)])
    assert abs(drawn.mean() - 0.577_216) < 0.01
    assert abs(drawn.var() - np.pi**2 / 6) < 0.02


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_noise_is_finite_at_the_ends_of_its_range(bits: int) -> None:
    key = (_unmixed(bits) - WEYL_STEP) % 2**64
    first = np.array([0])
    assert hashes(key, first).tolist() == [bits]
    assert 0.0 < uniform(key, first)[0] < 1.0
    assert np.isfinite(gumbel(key, first)).all()


def test_a_part_of_the_vocabulary_draws_what_the_whole_draws() -> None:
    key = row_key(11, 2, 300)
    whole = gumbel(key, ALL_IDS)
    picked = np.random.default_rng(5).permutation(2_048)[:333]
    assert np.array_equal(gumbel(key, picked), whole[picked])
    for start in range(0, 2_048, 512):
        assert np.array_equal(gumbel(key, ALL_IDS[start : start + 512]), whole[start : start + 512])


def _hash(seed: int, choice: int, position: int, token: int) -> int:
    return int(hashes(row_key(seed, choice, position), np.array([token]))[0])


def _unmixed(bits: int) -> int:
    """The number that the finalizer maps to `bits`: each of its steps undone, in reverse order."""
    for shift, factor in ((31, MIX_SECOND), (27, MIX_FIRST), (30, 1)):
        whole = bits
        for _ in range(64 // shift):
            whole = bits ^ (whole >> shift)
        bits = whole * pow(factor, -1, 2**64) % 2**64
    return bits
