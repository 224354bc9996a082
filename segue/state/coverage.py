"""Whoever handles state says which components; a model with another one is refused at start-up, never served in part.

The lists are written out on purpose: a component that is new in `ComponentName` is in none of them until somebody has
taken it up there.
"""

from collections.abc import Iterable

from segue.errors import ConfigError
from segue.state.spec import ComponentName


class Coverage:
    """The components that one consumer of state handles."""

    def __init__(self, consumer: str, *components: ComponentName) -> None:
        self.consumer = consumer
        self.components = frozenset(components)

    def require(self, components: Iterable[ComponentName]) -> None:
        """Raises ConfigError naming the consumer and what it does not handle."""
        missing = [component.value for component in components if component not in self.components]
        if missing:
            raise ConfigError(
                f"the model keeps state of component '{missing[0]}', which {self.consumer} does not handle; it handles "
                f"{', '.join(sorted(self.components))}"
            )
