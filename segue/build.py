"""Builds an engine from its configuration: loads the model, plans memory, joins the parts."""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from segue.batch.admission import Admission
from segue.batch.backups import BackupStore
from segue.batch.holdings import Holdings
from segue.batch.limits import KERNEL_CHUNK, SchedulerLimits
from segue.batch.ratio import RetractionRules
from segue.batch.retraction import Retraction
from segue.batch.reuse import Reuse
from segue.batch.role import Role
from segue.batch.scheduler import Scheduler
from segue.batch.turns import Turns
from segue.cache.shape import COVERAGE, CacheShape, Strategy
from segue.cache.tree import PrefixTree
from segue.config import EngineConfig, section
from segue.engine import Engine
from segue.engine_facts import EngineFacts
from segue.errors import ConfigError
from segue.kernels.recurrence.replaying import RingFolds
from segue.models.options import BuildOptions
from segue.models.registry import build_model
from segue.runner.context import Model
from segue.runner.ranks.crew import Crew
from segue.runner.ranks.device_memory import allocate, handle
from segue.runner.ranks.devices import rank_devices, use_device
from segue.runner.ranks.follower import Call, Follower
from segue.runner.ranks.led import LedModel, LedReplay
from segue.runner.ranks.orders import Order, encode_allocation
from segue.runner.ranks.process_ranks import ProcessRanks
from segue.runner.replay import StepReplay
from segue.runner.runner import Runner
from segue.runner.sampler import Sampler
from segue.state.layout import Shard, UnitLayout, layouts
from segue.state.plan import MemoryPlan, plan_memory
from segue.state.pool import Pool
from segue.state.recurrent import Replay, SlotStates
from segue.state.rings import Rings, require_replay, row_bytes
from segue.state.spec import COMPUTE_DTYPES, KV_DTYPES, ComponentName, DType, ModelState, uses_ssm_state
from segue.state.storage import SharedStorage, Storage
from segue.weights.folder import ModelFolder
from segue.weights.generation import GenerationDefaults
from segue.weights.source import LoadProgress, WeightSource

SCORED_BYTES_MAX = 64 << 20
"""What the logits of one step's scored positions may take up."""
_BUILD_S = 600.0
RANK_COMMAND = (sys.executable, "-m", "segue.rank")
"""Starts a rank above 0."""
TRACK_INTERVAL = 256
"""Tokens between two decode checkpoints, where the grid allows."""


@dataclass(frozen=True, slots=True)
class RetractionParts:
    """What makes requests retractable: the numbers of the policy, and what builds their host memory."""

    rules: RetractionRules
    store: Callable[[str, ModelState, Storage, SlotStates], BackupStore]
    """From the model's name, its state, the storage and the door to its slots. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine, the storage, slots and pools of its state, the plan that sized them, and the other ranks if any."""

    engine: Engine
    storage: Storage
    slots: SlotStates
    pools: Mapping[ComponentName, Pool]
    memory: MemoryPlan
    crew: Crew | None = None


def load_engine(
    config: EngineConfig,
    folder: ModelFolder,
    progress: Callable[[LoadProgress], None] = lambda _: None,
    retraction: RetractionParts | None = None,
) -> BuiltEngine:
    """Loads the folder's model and joins it with pools, scheduler and runner. With `retraction` requests can be taken
    off the device, unless it is a prefill worker's.

    Called on the thread that will compute: `config.threads` (0: as many as torch likes) is a setting of that thread.
    Raises CheckpointError for a folder that cannot be used, ConfigError for settings that do not fit it.
    """
    model, crew = open_model(config, folder, progress)
    name = config.name or folder.path.resolve().name
    try:
        return assemble(config, model, name=name, generation=folder.generation, retraction=retraction, crew=crew)
    except BaseException:
        if crew is not None:
            crew.close()
        raise


def open_model(
    config: EngineConfig,
    folder: ModelFolder,
    progress: Callable[[LoadProgress], None] = lambda _: None,
    rank_command: Sequence[str] = RANK_COMMAND,
) -> tuple[Model, Crew | None]:
    """The folder's model, and the other ranks that compute it if there are any.

    `rank_command` starts one of those; this process's id is its last word.
    Raises as `load_engine` does, and RankLost.
    """
    _set_threads(config)
    devices = rank_devices(config.device, config.tp)
    options = _options(config, devices[0])
    use_device(devices[0])
    if config.tp == 1:
        return build_model(folder.config, WeightSource(folder.files, progress), options), None
    crew = Crew(config.tp, [*rank_command, str(os.getpid())], config.rank_limit_s)
    try:
        crew.introduce(
            json.dumps({"config": {**asdict(config), "model": str(config.model)}, "folder": crew.folder}).encode()
        )
        ranks = ProcessRanks(Shard(0, config.tp), devices, ordered=config.deterministic)
        crew.at_end(ranks.abandon)
        model = build_model(folder.config, WeightSource(folder.files, progress), replace(options, ranks=ranks))
        crew.wait_done(Order.BUILD, _BUILD_S)
        crew.broadcast(Order.MEET)
        ranks.meet(crew.folder, config.rank_limit_s)
    except BaseException:
        crew.close()
        raise
    return LedModel(model, crew), crew


def build_follower(about: bytes, call: Call) -> Follower:
    """A rank above 0 of the worker that says `about` itself what `open_model` has it say first."""
    told = json.loads(about)
    config = section(EngineConfig, told["config"], "engine")
    _set_threads(config)
    shard = Shard(call.rank, config.tp)
    devices = rank_devices(config.device, config.tp)
    use_device(devices[call.rank])
    ranks = ProcessRanks(shard, devices, ordered=config.deterministic)
    folder = ModelFolder.open(config.model)
    options = replace(_options(config, devices[call.rank]), ranks=ranks)
    model = build_model(folder.config, WeightSource(folder.files), options)
    return Follower(
        model, shard, config.page_tokens, call.memory, lambda: ranks.meet(told["folder"], config.rank_limit_s)
    )


def assemble(
    config: EngineConfig,
    model: Model,
    *,
    name: str,
    generation: GenerationDefaults,
    retraction: RetractionParts | None = None,
    crew: Crew | None = None,
) -> BuiltEngine:
    """Joins an already loaded model with pools, scheduler and runner. Raises ConfigError when memory is too small.

    `model` and `crew` are those of `open_model`.
    """
    assert (crew is None) == (config.tp == 1), f"a model of {config.tp} ranks"
    max_len = min(config.max_len or model.max_position, model.max_position)
    role = Role(config.role)
    shard = Shard(0, config.tp)
    unit_layouts = layouts(model.state, config.page_tokens, shard)
    replays = config.replay_length > 1 and role is not Role.PREFILL
    if replays:
        require_replay(model.state, name)
    ring_rows = config.max_running + 1 if replays else 0
    cached = _cached(config, model.state) if config.prefix_cache else None
    memory = plan_memory(
        model.state,
        unit_layouts,
        budget_bytes=config.state_bytes,
        max_running=config.max_running,
        step_tokens=config.step_tokens,
        max_len=max_len,
        cached=cached,
        ring_bytes=ring_rows * row_bytes(model.state.records, config.replay_length, shard),
    )
    window = model.state.window
    chunk_tokens = min(config.chunk_tokens, config.step_tokens)
    storage = _storage(unit_layouts, memory, config, model.device, crew)
    rings: Rings | None = None
    replay: Replay | None = None
    slot_count = memory.counts.get(ComponentName.RECURRENT, 1)
    if replays:
        rings = Rings(model.state.records, config.replay_length, ring_rows, slot_count, model.device, shard)
        replay = RingFolds(rings, storage, model.state.records)
    if crew is not None:
        handles = [handle(region) for region in storage.regions.tensors[1:]] if storage.regions.cuda_devices else []
        crew.broadcast(Order.ALLOCATE, encode_allocation(memory.counts, ring_rows, config.replay_length, handles))
        crew.wait_done(Order.ALLOCATE)
        replay = None if replay is None else LedReplay(replay, storage, crew)
    slots = SlotStates(storage, slot_count, replay)
    pools = {component: Pool(component, units) for component, units in memory.counts.items()}
    reuse = None
    if cached is not None:
        reuse = Reuse(PrefixTree(cached, pools, slots.release), retain=config.retain_window)
    holdings = Holdings(pools, slots, page_tokens=config.page_tokens, window=window, reuse=reuse)
    retracts = None
    if retraction is not None and role is not Role.PREFILL:
        store = retraction.store(name, model.state, storage, slots)
        retracts = Retraction(store, holdings, retraction.rules)
    admission = Admission(
        {component: pool.usable_count for component, pool in pools.items()},
        page_tokens=config.page_tokens,
        window=window,
        chunk_tokens=chunk_tokens,
        max_len=max_len,
        role=role,
        cached=cached,
        ratio=None if retracts is None else retracts.ratio,
    )
    limits = SchedulerLimits(
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        step_tokens=config.step_tokens,
        chunk_tokens=chunk_tokens,
        page_tokens=config.page_tokens,
        scored_tokens=scored_tokens_max(model.vocab_size),
    )
    facts = EngineFacts(
        name=name,
        vocab_size=model.vocab_size,
        max_len=max_len,
        eos_token_ids=generation.eos_token_ids,
        defaults=generation.sampling,
        page_tokens=config.page_tokens,
        dtype=config.dtype,
        deterministic=config.deterministic,
        window=window,
        layouts=unit_layouts,
        role=role,
    )
    sampler = Sampler(generation.eos_token_ids, model.vocab_size)
    step_replay = StepReplay(slots, rings, model.device) if rings is not None else None
    runner = Runner(model, storage, config.page_tokens, sampler, step_replay)
    turns = Turns(config.asks_ahead) if role is Role.PREFILL else None
    engine = Engine(facts, Scheduler(limits, admission, holdings, turns, retracts), holdings, slots, runner)
    return BuiltEngine(engine, storage, slots, pools, memory, crew)


def scored_tokens_max(vocab_size: int) -> int:
    """How many positions one step may score: as many as have room for their fp32 logits, but at least one."""
    return max(1, SCORED_BYTES_MAX // (torch.float32.itemsize * vocab_size))


def _cached(config: EngineConfig, state: ModelState) -> CacheShape:
    COVERAGE.require(spec.name for spec in state.components)
    grid = math.lcm(config.page_tokens, KERNEL_CHUNK)
    interval = config.track_interval or -(-TRACK_INTERVAL // grid) * grid
    return CacheShape(
        page_tokens=config.page_tokens,
        full=state.component(ComponentName.FULL) is not None,
        window=state.window,
        recurrent=uses_ssm_state(state),
        grid=grid,
        interval=interval,
        strategy=Strategy(config.checkpoint_strategy),
    )


def _storage(
    unit_layouts: tuple[UnitLayout, ...],
    memory: MemoryPlan,
    config: EngineConfig,
    device: torch.device,
    crew: Crew | None,
) -> Storage:
    if crew is None:
        return Storage(unit_layouts, memory.counts, device)
    if device.type == "cpu":
        host, tp = crew.memory, config.tp
        return SharedStorage(unit_layouts, memory.counts, lambda size: host.allocate(tp * size).split(size))
    devices = rank_devices(config.device, config.tp)
    return SharedStorage(unit_layouts, memory.counts, lambda size: allocate(devices, size))


def _set_threads(config: EngineConfig) -> None:
    """Ranks of one machine share its cores."""
    threads = config.threads
    if not threads and config.tp > 1:
        # As many as one process would take: under Ray that is what it has set aside.
        threads = max(1, torch.get_num_threads() // config.tp)
    if threads:
        torch.set_num_threads(threads)


def _options(config: EngineConfig, device: torch.device) -> BuildOptions:
    if config.dtype not in COMPUTE_DTYPES:
        raise ConfigError(f"engine.dtype is '{config.dtype}'; known are {', '.join(COMPUTE_DTYPES)}", param="dtype")
    return BuildOptions(
        dtype=DType(config.dtype),
        kv_dtype=KV_DTYPES.get(config.kv_dtype),
        deterministic=config.deterministic,
        device=device,
    )
