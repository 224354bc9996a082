"""A fourth kind of state: whoever handles state refuses it, by name, until it has been taken up there."""

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from decode_service.retraction.backends import choose_backend
from decode_service.retraction.config import RetractionConfig
from decode_service.snapshots.images import StateForm
from kv_transfer.digest import digest_contents
from kv_transfer.export import Export
from kv_transfer.fingerprint import describe_layouts
from kv_transfer.plan import Contents, Side
from segue.batch.admission import Admission
from segue.batch.holdings import Holdings
from segue.build import assemble
from segue.cache.shape import CacheShape
from segue.cache.tree import PrefixTree
from segue.config import EngineConfig
from segue.errors import ConfigError
from segue.runner.context import StepContext
from segue.runner.runner import Runner
from segue.runner.sampler import Sampler
from segue.state.coverage import Coverage
from segue.state.layout import Shard, layouts
from segue.state.plan import plan_memory
from segue.state.pool import Pool
from segue.state.recurrent import SlotStates
from segue.state.spec import ComponentName, ComponentSpec, DType, ModelState, StateTensor
from segue.state.storage import Storage
from segue.weights.generation import GenerationDefaults
from tests.repo.sources import calls, dotted_name, product_modules
from tests.support.handoff_state import model_state

PAGE = 4


def made_up() -> ComponentName:
    """A member that the enumeration does not have, and that looks like one that it has."""
    member = str.__new__(ComponentName, "sketch")
    member._name_, member._value_ = "SKETCH", "sketch"
    return member


KNOWN = model_state()
TENSOR = StateTensor(9, "sketch", made_up(), 1, (4,), DType.FLOAT32)
STATE = ModelState((*KNOWN.components, ComponentSpec(TENSOR.component, (TENSOR,), None)))
LAYOUTS = layouts(STATE, PAGE, Shard())
SHAPE = CacheShape(page_tokens=PAGE, full=True, window=6, recurrent=True, grid=64, interval=64)


class SketchingModel:
    """Declares a state with a fourth component; computes nothing."""

    state = STATE
    device = torch.device("cpu")
    vocab_size = 16
    max_position = 64

    def forward(self, step: StepContext) -> torch.Tensor:
        raise NotImplementedError


def pools() -> dict[ComponentName, Pool]:
    return {spec.name: Pool(spec.name.value, 2) for spec in STATE.components}


def storage() -> Storage:
    made = layouts(KNOWN, PAGE, Shard())
    return Storage(made, {layout.component: 2 for layout in made}, torch.device("cpu"))


def storage_with_a_fourth() -> Storage:
    """As a storage would look that has taken the fourth component up already, before others have."""
    found = storage()
    found.layouts = {layout.component: layout for layout in LAYOUTS}
    return found


def assembled(*, prefix_cache: bool) -> object:
    config = EngineConfig(model=Path(), page_tokens=PAGE, prefix_cache=prefix_cache)
    return assemble(config, SketchingModel(), name="m", generation=GenerationDefaults(eos_token_ids=(1,)))


# What a consumer calls itself, and how it comes to see a model's state.
CONSUMERS: Mapping[str, Callable[[], object]] = {
    "the memory plan": lambda: plan_memory(
        STATE, LAYOUTS, budget_bytes=1 << 24, max_running=1, step_tokens=8, max_len=8
    ),
    "the storage": lambda: Storage(LAYOUTS, {layout.component: 2 for layout in LAYOUTS}, torch.device("cpu")),
    "the holdings of requests": lambda: Holdings(pools(), SlotStates(storage(), 2), page_tokens=PAGE, window=6),
    "admission": lambda: Admission(dict.fromkeys(pools(), 1), page_tokens=PAGE, window=6, chunk_tokens=PAGE, max_len=8),
    "the prefix cache": lambda: PrefixTree(SHAPE, pools(), lambda slot: None),
    "the runner": lambda: Runner(SketchingModel(), storage(), PAGE, Sampler((1,), 16)),
    "the transfer plan": lambda: Side(LAYOUTS, PAGE, 6),
    "the digest": lambda: digest_contents(storage(), [], [Contents(made_up(), 0, 1)]),
    "the export of state": lambda: Export(storage_with_a_fourth(), PAGE),
    "the snapshot": lambda: StateForm(LAYOUTS, PAGE, 6),
    "retraction": lambda: choose_backend(RetractionConfig(), "m", STATE),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_component_that_a_consumer_does_not_handle_is_refused_by_it(consumer: str) -> None:
    with pytest.raises(ConfigError, match=f"component 'sketch', which {consumer} does not handle"):
        CONSUMERS[consumer]()


def test_every_consumer_that_says_what_it_handles_is_among_these() -> None:
    named = {
        argument.value
        for module in product_modules()
        for call, name in calls(module)
        if name == "Coverage"
        for argument in call.args[:1]
        if isinstance(argument, ast.Constant)
    }
    assert named == CONSUMERS.keys()


def test_no_consumer_handles_whatever_there_is() -> None:
    """Each names its components one by one: a new one is in none of these lists by itself."""
    for module in product_modules():
        for call, name in calls(module):
            if name == "Coverage":
                components = [dotted_name(argument) for argument in call.args[1:]]
                assert all(text.startswith("ComponentName.") for text in components), f"{module.path}:{call.lineno}"
                assert not call.keywords, f"{module.path}:{call.lineno}"


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_worker_does_not_start_with_a_model_that_is_not_covered(prefix_cache: bool) -> None:
    with pytest.raises(ConfigError, match="component 'sketch'"):
        assembled(prefix_cache=prefix_cache)


def test_what_is_covered_is_let_through() -> None:
    Coverage("somebody", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT).require(ComponentName)
    with pytest.raises(ConfigError, match="'window', which somebody does not handle; it handles full"):
        Coverage("somebody", ComponentName.FULL).require([ComponentName.FULL, ComponentName.WINDOW])


def test_a_fingerprint_describes_whatever_there_is() -> None:
    """So that a worker which has taken up a fourth component does not meet one which has not."""
    lines = describe_layouts(LAYOUTS)
    assert len(lines) == len(STATE.components)
    assert [line for line in lines if line.startswith("sketch: ")]
