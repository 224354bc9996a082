"""Conversations whose prompts begin alike, by the shapes that serving engines are compared with; random tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

Parts = tuple[tuple[int, ...], ...]
"""What a client says turn by turn; each prompt is all that was said before, answers included, and the next part."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`groups` of `requests` conversations; those of a group share their first `shared` tokens."""

    groups: int
    requests: int
    shared: int
    turns: int
    turn_min: int
    turn_max: int

    def conversations(self, scale: float, vocabulary: Sequence[int]) -> list[Parts]:
        """All of them in random order, the same every time. `scale` says how many of each group there are."""
        draw = random.Random(0)
        found = []
        for _ in range(self.groups):
            shared = draw.choices(vocabulary, k=self.shared)
            for _ in range(max(1, round(self.requests * scale))):
                parts = [draw.choices(vocabulary, k=draw.randint(self.turn_min, self.turn_max))]
                parts[0] = [*shared, *parts[0]]
                for _ in range(self.turns - 1):
                    parts.append(draw.choices(vocabulary, k=draw.randint(self.turn_min, self.turn_max)))
                found.append(tuple(tuple(part) for part in parts))
        draw.shuffle(found)
        return found


WORKLOADS = {
    "rag": Workload(groups=8, requests=32, shared=2_048, turns=1, turn_min=128, turn_max=256),
    "fewshot": Workload(groups=32, requests=8, shared=512, turns=1, turn_min=128, turn_max=256),
    "chat": Workload(groups=1, requests=32, shared=256, turns=6, turn_min=32, turn_max=96),
}
