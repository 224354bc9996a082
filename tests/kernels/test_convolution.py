"""The shifted convolution equals its definition, decoded or extended in any cut, on poisoned slots."""

import pytest
import torch

from segue.kernels.convolution import reference, shifted
from tests.kernels.poisoned import noise, slot_memory

GROUPS, CHANNELS = 2, 12


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("cuts", [[1] * 9, [9], [2, 3, 4], [1, 8]])
def test_any_cut_equals_the_definition(width: int, cuts: list[int]) -> None:
    taps = noise(width, GROUPS, CHANNELS)
    columns = noise(sum(cuts), GROUPS, CHANNELS, seed=1)
    past = noise(GROUPS, width - 1, CHANNELS, seed=2)
    memory = slot_memory(GROUPS, (width - 1, CHANNELS), 7).whole
    memory[5] = past
    out = torch.cat([shifted.extend(part, taps.unbind(0), memory[5]) for part in columns.split(cuts)])
    for group in range(GROUPS):
        wanted, last = reference.convolve(columns[:, group], taps[:, group], past[group])
        torch.testing.assert_close(out[:, group], wanted, rtol=0, atol=1e-6)
        assert torch.equal(memory[5, group], last)


@pytest.mark.parametrize("width", [2, 4])
def test_decode_has_the_bits_of_extend_and_touches_its_slots_alone(width: int) -> None:
    taps = noise(width, GROUPS, CHANNELS).unbind(0)
    columns = noise(3, GROUPS, CHANNELS + 3, seed=1)[:, :, 3:]
    memory = slot_memory(GROUPS, (width - 1, CHANNELS), 7).whole
    slots = [8, 2, 3]
    alone = []
    for row, slot in enumerate(slots):
        memory[slot] = noise(GROUPS, width - 1, CHANNELS, seed=slot)
        own = memory[slot].clone()
        alone.append((shifted.extend(columns[row : row + 1], taps, own), own))
    out = shifted.decode(columns, taps, memory, torch.tensor(slots))
    for row, slot in enumerate(slots):
        assert torch.equal(out[row : row + 1], alone[row][0])
        assert torch.equal(memory[slot], alone[row][1])
    assert memory[[slot for slot in range(len(memory)) if slot not in slots]].isnan().all()
