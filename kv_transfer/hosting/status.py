"""A worker's identity and figures as the wire shows them."""

from kv_transfer.hosting.loading import Identity
from segue.engine_facts import EngineFacts, EngineStatus
from segue.ids import WorkerId
from segue.wire import PoolStatus, Transfers, WorkerDescription, WorkerStatus


def worker_status(
    worker_id: WorkerId, facts: EngineFacts, status: EngineStatus, transfers: Transfers, *, ready: bool
) -> WorkerStatus:
    """Load and pools of one worker; `transfers` tells what came to it. A unit's bytes are those of one rank."""
    unit_bytes = {layout.component.value: layout.unit_bytes for layout in facts.layouts}
    return WorkerStatus(
        worker_id=worker_id,
        ready=ready,
        running=status.running,
        waiting=status.waiting,
        steps=status.steps,
        generated_tokens=status.generated_tokens,
        prefill_tokens=status.prefill_tokens,
        tp_size=facts.tp_size,
        unpromised=status.unpromised,
        promised=status.promised,
        transfers=transfers,
        cache=status.cache,
        retraction=status.retraction,
        replay=status.replay,
        pools=tuple(
            PoolStatus(
                component=pool.name,
                capacity=pool.capacity,
                free=pool.free,
                held=pool.held,
                cached=pool.cached,
                reserved=pool.reserved,
                quarantined=pool.quarantined,
                sink=pool.sink,
                unit_bytes=unit_bytes[pool.name],
            )
            for pool in status.pools
        ),
    )


def describe(worker_id: WorkerId, identity: Identity) -> WorkerDescription:
    """Model, limits and identity, for a router that considers sending work."""
    facts = identity.facts
    return WorkerDescription(
        worker_id=worker_id,
        role=facts.role.value,
        model_name=facts.name,
        fingerprint=identity.fingerprint,
        vocab_size=facts.vocab_size,
        max_len=facts.max_len,
        eos_token_ids=facts.eos_token_ids,
        page_tokens=facts.page_tokens,
        deterministic=facts.deterministic,
        defaults=facts.defaults,
    )
