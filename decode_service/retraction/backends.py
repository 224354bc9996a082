"""Which backend keeps a model's backups: follows from the model, or was asked for and fits it; knows no memory."""

from decode_service.retraction.config import BackendName, RetractionConfig
from segue.errors import ConfigError
from segue.state.coverage import Coverage
from segue.state.spec import ComponentName, ModelState, uses_ssm_state

COVERAGE = Coverage("retraction", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)
"""Components that one backend or the other carries."""


def choose_backend(config: RetractionConfig, model_name: str, state: ModelState) -> BackendName:
    """Raises ConfigError when the backend that was asked for cannot carry all of the model's state.

    What is inferred always can.
    """
    COVERAGE.require(spec.name for spec in state.components)
    inferred = BackendName.CPU_TENSOR if uses_ssm_state(state) else BackendName.HOST_POOL
    wanted = BackendName(config.backend) if config.backend else inferred
    if wanted is BackendName.HOST_POOL and uses_ssm_state(state):
        raise ConfigError(
            f"retraction.backend '{wanted}' keeps pages only, and model '{model_name}' has recurrent state, which is "
            f"in none; take '{BackendName.CPU_TENSOR}', or leave retraction.backend empty to have it chosen",
            param="backend",
        )
    return wanted
