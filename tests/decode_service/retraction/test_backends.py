"""Which backend a model gets, what is refused, and what the settings must say."""

import logging

import pytest

from decode_service.retraction.backends import choose_backend
from decode_service.retraction.backup import HostCopy, RetractionBackup
from decode_service.retraction.config import BackendName, RetractionConfig
from decode_service.retraction.copies import Done
from decode_service.retraction.extents import Extent
from segue.config import section
from segue.errors import ConfigError
from segue.state.spec import ComponentName, ModelState, uses_ssm_state
from segue.state.storage import Storage
from tests.decode_service.retraction.devices import ALL, FULL, RECURRENT, TRAITS, WINDOW, Device, model_state

RECURRENT_TRAITS = [components for components in TRAITS if RECURRENT in components]


@pytest.mark.parametrize("components", TRAITS, ids="+".join)
def test_the_default_follows_from_the_model_and_starts(components: tuple[ComponentName, ...]) -> None:
    state = model_state(components)
    expected = BackendName.CPU_TENSOR if uses_ssm_state(state) else BackendName.HOST_POOL
    assert choose_backend(RetractionConfig(), "m", state) is expected
    assert Device(state).host_is_empty


@pytest.mark.parametrize("components", RECURRENT_TRAITS, ids="+".join)
def test_pages_alone_are_refused_for_recurrent_state(components: tuple[ComponentName, ...]) -> None:
    with pytest.raises(ConfigError, match=r"'host_pool'.*'made-up' has recurrent state.*take 'cpu_tensor'"):
        Device(model_state(components), config=RetractionConfig(backend="host_pool"))


@pytest.mark.parametrize("components", TRAITS, ids="+".join)
def test_tensors_of_each_request_can_be_asked_for_with_every_model(components: tuple[ComponentName, ...]) -> None:
    config = RetractionConfig(backend="cpu_tensor")
    assert choose_backend(config, "m", model_state(components)) is BackendName.CPU_TENSOR


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "disk"}, r"retraction\.backend is 'disk'.*cpu_tensor, host_pool"),
        ({"host_bytes": -1}, r"retraction\.host_bytes is -1"),
        ({"ratio_floor": 0.8}, r"retraction\.ratio_start is 0\.7.*ratio_floor 0\.8"),
        ({"ratio_start": 1.5}, r"retraction\.ratio_start is 1\.5"),
        ({"ratio_start": float("nan")}, r"retraction\.ratio_start is nan"),
        ({"ratio_steps": 0}, r"retraction\.ratio_steps is 0"),
        ({"headroom_steps": -1}, r"retraction\.headroom_steps is -1"),
        ({"test_interval": -3}, r"retraction\.test_interval is -3"),
        ({"test_drop": "conv"}, r"retraction\.test_drop is 'conv'.*full, recurrent, window"),
        ({"test_drop": "full", "verify": True}, r"retraction\.test_drop 'full'.*verify"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        section(RetractionConfig, changes, "retraction")


def test_a_component_that_the_model_does_not_have_cannot_be_dropped() -> None:
    with pytest.raises(ConfigError, match=r"retraction\.test_drop is 'recurrent', which model 'made-up' does not have"):
        Device(model_state((FULL, WINDOW)), config=RetractionConfig(host_bytes=0, test_drop="recurrent"))


def test_dropping_state_is_said_aloud_at_start(caplog: pytest.LogCaptureFixture) -> None:
    Device(model_state(), config=RetractionConfig(host_bytes=0))
    assert not caplog.records
    Device(model_state(), config=RetractionConfig(host_bytes=0, test_drop="window"))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "FOR TESTS ONLY" in record.getMessage()


def test_more_host_memory_than_there_is_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"retraction\.host_bytes is \d+, and \d+ bytes are available here"):
        Device(model_state(), config=RetractionConfig(host_bytes=1 << 50))


# One carrier of recurrent state


def backup(state: ModelState, *, slot: bool, carried: bool) -> RetractionBackup:
    copy = HostCopy(RECURRENT, 0, 1, (Extent(0, 64),))
    return RetractionBackup(
        depth=1,
        mamba_cpu=copy if slot else None,
        digests=(),
        end=Done(),
        recurrent=uses_ssm_state(state),
        cpu_copy_carries_mamba=carried,
    )


@pytest.mark.parametrize(("slot", "carried"), [(True, False), (False, True)])
def test_recurrent_state_has_one_carrier(slot: bool, carried: bool) -> None:
    assert backup(model_state(ALL), slot=slot, carried=carried).depth == 1


@pytest.mark.parametrize(("slot", "carried"), [(True, True), (False, False)])
def test_two_carriers_of_recurrent_state_or_none_are_our_mistake(slot: bool, carried: bool) -> None:
    with pytest.raises(AssertionError, match="recurrent state is carried"):
        backup(model_state(ALL), slot=slot, carried=carried)


@pytest.mark.parametrize(("slot", "carried"), [(True, False), (False, True)])
def test_a_model_without_recurrent_state_has_no_carrier(slot: bool, carried: bool) -> None:
    assert backup(model_state((FULL,)), slot=False, carried=False).mamba_cpu is None
    with pytest.raises(AssertionError, match="recurrent state is carried"):
        backup(model_state((FULL,)), slot=slot, carried=carried)


def test_a_storage_of_pages_does_not_carry_slots_with_them() -> None:
    assert Storage.cpu_copy_carries_mamba is False
