"""From the settings of retraction to what an engine is built with."""

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.store import retraction_store
from decode_service.snapshots.images import StateImages
from decode_service.snapshots.store import ImageStore
from segue.batch.backups import BackupStore
from segue.batch.ratio import RetractionRules
from segue.build import RetractionParts
from segue.state.recurrent import SlotStates
from segue.state.spec import ModelState
from segue.state.storage import Storage


def retraction_parts(config: RetractionConfig, page_tokens: int) -> RetractionParts:
    """What lets requests of an engine with pages of `page_tokens` be taken off the device and brought back."""

    def store(model_name: str, state: ModelState, storage: Storage, slots: SlotStates) -> BackupStore:
        kept = retraction_store(config, model_name, state, storage, slots, page_tokens)
        return ImageStore(kept, StateImages(storage, slots, page_tokens, state.window))

    rules = RetractionRules(
        headroom_steps=config.headroom_steps,
        ratio_start=config.ratio_start,
        ratio_floor=config.ratio_floor,
        ratio_steps=config.ratio_steps,
        forced_every=config.test_interval,
    )
    return RetractionParts(rules, store)
