"""A worker's figures, proto to value and back; decides nothing."""

from segue.ids import WorkerId
from segue.v1 import worker_pb2 as pb
from segue.wire.values import CacheFigures, CacheHits, PoolStatus, Transfers, WorkerStatus


def status_to_proto(value: WorkerStatus) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        worker_id=value.worker_id,
        ready=value.ready,
        running=value.running,
        waiting=value.waiting,
        steps=value.steps,
        generated_tokens=value.generated_tokens,
        prefill_tokens=value.prefill_tokens,
        unpromised=value.unpromised,
        promised=value.promised,
        transfers=pb.Transfers(
            count=value.transfers.count,
            latency_s=value.transfers.latency_s,
            bytes=value.transfers.bytes,
            speed_gb_s=value.transfers.speed_gb_s,
        ),
        cache=_cache_to_proto(value.cache),
        pools=[
            pb.PoolStatus(
                component=pool.component,
                capacity=pool.capacity,
                free=pool.free,
                held=pool.held,
                cached=pool.cached,
                reserved=pool.reserved,
                quarantined=pool.quarantined,
                sink=pool.sink,
                unit_bytes=pool.unit_bytes,
            )
            for pool in value.pools
        ],
    )


def status_from_proto(message: pb.WorkerStatus) -> WorkerStatus:
    return WorkerStatus(
        worker_id=WorkerId(message.worker_id),
        ready=message.ready,
        running=message.running,
        waiting=message.waiting,
        steps=message.steps,
        generated_tokens=message.generated_tokens,
        prefill_tokens=message.prefill_tokens,
        unpromised=message.unpromised,
        promised=message.promised,
        transfers=Transfers(
            message.transfers.count,
            message.transfers.latency_s,
            message.transfers.bytes,
            message.transfers.speed_gb_s,
        ),
        cache=_cache_from_proto(message.cache),
        pools=tuple(
            PoolStatus(
                component=pool.component,
                capacity=pool.capacity,
                free=pool.free,
                held=pool.held,
                cached=pool.cached,
                reserved=pool.reserved,
                quarantined=pool.quarantined,
                sink=pool.sink,
                unit_bytes=pool.unit_bytes,
            )
            for pool in message.pools
        ),
    )


def _cache_to_proto(value: CacheFigures) -> pb.Cache:
    return pb.Cache(
        hits=[pb.CacheHits(limited_by=hits.limited_by, tokens=hits.tokens) for hits in value.hits],
        looked_up_tokens=value.looked_up_tokens,
        checkpoints_taken=value.checkpoints_taken,
        checkpoints_duplicate=value.checkpoints_duplicate,
        checkpoints_skipped=value.checkpoints_skipped,
        checkpoints_evicted=value.checkpoints_evicted,
        checkpoints_resumed=value.checkpoints_resumed,
        floors_dropped=value.floors_dropped,
        floor_tokens=value.floor_tokens,
        floor_tokens_max=value.floor_tokens_max,
        floor_tokens_decoding=value.floor_tokens_decoding,
        decode_rows=value.decode_rows,
        prompts_extended=value.prompts_extended,
        prompts_sent=value.prompts_sent,
    )


def _cache_from_proto(message: pb.Cache) -> CacheFigures:
    return CacheFigures(
        hits=tuple(
            CacheHits(hits.limited_by if hits.HasField("limited_by") else None, hits.tokens) for hits in message.hits
        ),
        looked_up_tokens=message.looked_up_tokens,
        checkpoints_taken=message.checkpoints_taken,
        checkpoints_duplicate=message.checkpoints_duplicate,
        checkpoints_skipped=message.checkpoints_skipped,
        checkpoints_evicted=message.checkpoints_evicted,
        checkpoints_resumed=message.checkpoints_resumed,
        floors_dropped=message.floors_dropped,
        floor_tokens=message.floor_tokens,
        floor_tokens_max=message.floor_tokens_max,
        floor_tokens_decoding=message.floor_tokens_decoding,
        decode_rows=message.decode_rows,
        prompts_extended=message.prompts_extended,
        prompts_sent=message.prompts_sent,
    )
