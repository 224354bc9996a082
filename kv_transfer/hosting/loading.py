"""Loads a worker's engine and works out what it can exchange state with; runs on the engine thread."""

from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.fingerprint import Fingerprint, config_digest, describe_layouts
from segue.batch.limits import KERNEL_CHUNK
from segue.build import BuiltEngine, RetractionParts, load_engine
from segue.config import EngineConfig
from segue.engine import Engine
from segue.engine_facts import EngineFacts
from segue.weights.digest import weights_digest
from segue.weights.folder import ModelFolder
from segue.weights.source import LoadProgress
from segue.wire import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker says of itself: the engine's facts, and what its peers must have in common with it.

    `fingerprint` is the digest of `fields`.
    """

    facts: EngineFacts
    fingerprint: str
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine that can run, and what it was built with; a scripted engine has no state to exchange."""

    engine: Engine
    identity: Identity
    built: BuiltEngine | None = None


def load(
    config: EngineConfig,
    loading: Callable[[LoadProgress], None],
    planned: Callable[[str], None],
    retraction: RetractionParts | None = None,
) -> Loaded:
    """The engine of `config`. `planned` is told how memory was split. With `retraction` requests can be taken off the
    device, unless it is a prefill worker's.

    Raises CheckpointError for a folder that cannot be used, ConfigError for settings that do not fit it.
    """
    folder = ModelFolder.open(config.model)
    built = load_engine(config, folder, loading, retraction)
    planned(str(built.memory) + (f", on each of {config.tp} ranks" if config.tp > 1 else ""))
    ours = fingerprint(folder, built.engine.facts)
    return Loaded(built.engine, Identity(built.engine.facts, ours.hex, tuple(ours.fields().items())), built)


def fingerprint(folder: ModelFolder, facts: EngineFacts) -> Fingerprint:
    """What a peer must have in common with an engine of these facts."""
    return Fingerprint(
        model_config=config_digest(folder.config),
        weights=weights_digest(folder.files),
        compute_dtype=facts.dtype + (", deterministic" if facts.deterministic else ""),
        page_tokens=facts.page_tokens,
        window=facts.window,
        kernel_chunk=KERNEL_CHUNK,
        components=describe_layouts(facts.layouts),
        protocol_version=PROTOCOL_VERSION,
    )
