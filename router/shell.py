"""What the endpoints share: one router's parts, put together once."""

from dataclasses import dataclass

from router.admission import Admission
from router.config import RouterConfig
from router.dispatch import ChoiceSpec, Dispatch
from router.fleet import Fleet
from router.metrics import Metrics
from router.request_ids import LiveRequests
from router.snapshots.leftovers import Leftovers
from router.snapshots.running import RunningRequests
from router.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Shell:
    """Everything an endpoint may use. `draining` refuses new work while what runs is finished."""

    config: RouterConfig
    tokenizer: Tokenizer
    fleet: Fleet
    admission: Admission
    metrics: Metrics
    live: LiveRequests
    running: RunningRequests
    leftovers: Leftovers
    draining: bool = False

    def dispatch(self, spec: ChoiceSpec) -> Dispatch:
        """Begins one choice."""
        return Dispatch(spec, self.fleet, self.config, self.metrics, self.leftovers.discard)
