"""Whether a request may start: every component must have room for all it can come to need, so that no step ever fails.

Until requests can be retracted, a running request must be able to reach its full length: admission commits that much. A
prefill worker computes prompts only, and commits no more than those.
"""

from collections.abc import Iterable, Mapping

from segue.batch.lifecycle import Phase
from segue.batch.request import Request
from segue.batch.role import Role
from segue.cache.shape import CacheShape
from segue.errors import ContextTooLong
from segue.state.needs import SLOTS_EACH, page_count, retained_pages_max, window_pages_max
from segue.state.spec import ComponentName

HEADROOM_TOKENS = 20
"""Decode steps for which a receiver sets pages aside beside the prompt."""


class Admission:
    """Commitments of the running and promised requests against what each pool can hold."""

    def __init__(
        self,
        usable: Mapping[ComponentName, int],
        *,
        page_tokens: int,
        window: int | None,
        chunk_tokens: int,
        max_len: int,
        role: Role = Role.BOTH,
        cached: CacheShape | None = None,
    ) -> None:
        """`cached`: prefixes are cached, and requests retain what they can be matched at."""
        self._usable = dict(usable)
        self._page_tokens = page_tokens
        self._window = window
        self._chunk_tokens = chunk_tokens
        self._max_len = max_len
        self._role = role
        self._cached = cached

    def validate(self, request: Request) -> None:
        """Raises ContextTooLong when the request could not run even alone."""
        if request.max_len > self._max_len:
            raise ContextTooLong(
                f"request {request.request_id}: prompt of {request.prompt_len} tokens and max_tokens "
                f"{request.sampling.max_tokens} make {request.max_len}, this worker serves at most {self._max_len}; "
                "shorten the prompt or lower max_tokens"
            )
        for component, units in self.needs(request).items():
            if units > self._usable[component]:
                raise ContextTooLong(
                    f"request {request.request_id} needs {units} units of the {component} pool, "
                    f"which has {self._usable[component]}"
                )

    def needs(self, request: Request) -> dict[ComponentName, int]:
        """Units of each component that the request may come to hold from now on."""
        found: dict[ComponentName, int] = {}
        positions = self._positions(request)
        for component in self._usable:
            if component is ComponentName.FULL:
                foreign = request.lease.foreign if request.lease is not None else 0
                found[component] = page_count(positions, self._page_tokens) + foreign
            elif component is ComponentName.WINDOW:
                assert self._window is not None
                window_pages = window_pages_max(self._window, self._stride(request, positions), self._page_tokens)
                reach = page_count(positions, self._page_tokens)
                if self._cached is not None and self._cached.recurrent:
                    window_pages += retained_pages_max(self._window, self._page_tokens)
                    # A page that came, or was computed twice, may stand beside the tree's own of the same tokens.
                    reach *= 2
                found[component] = max(min(window_pages, reach), _held(request))
            else:
                found[component] = SLOTS_EACH if self._cached is not None else 1
        return found

    def fits(self, request: Request, committed: Iterable[Request], withheld: Mapping[ComponentName, int]) -> bool:
        """Whether the request fits beside all that the committed ones may come to hold and units nobody can use now."""
        room = self.spare(committed, withheld)
        return all(units <= room[component] for component, units in self.needs(request).items())

    def spare(self, committed: Iterable[Request], withheld: Mapping[ComponentName, int]) -> dict[ComponentName, int]:
        """Units beyond all that the committed requests may come to hold, and those nobody can use now."""
        room = {component: units - withheld.get(component, 0) for component, units in self._usable.items()}
        for other in committed:
            for component, units in self.needs(other).items():
                room[component] -= units
        return room

    def _positions(self, request: Request) -> int:
        """How many positions will be computed here. The last token's own state never is."""
        if request.ends_with_prompt:
            return request.prompt_len
        return request.known_len if self._role is Role.PREFILL else request.max_len - 1

    def _stride(self, request: Request, positions: int) -> int:
        """Positions past the tail that may need pages at once."""
        match request.phase:
            case Phase.WAITING | Phase.EXTENDING:
                return min(self._chunk_tokens, positions)
            case Phase.AWAITING:
                return max(1, headroom(request))
        return 1


def headroom(request: Request) -> int:
    """Tokens beyond the known ones for which a receiver sets pages aside: never more than the request can come to."""
    return min(HEADROOM_TOKENS, request.max_len - 1 - request.known_len)


def _held(request: Request) -> int:
    """Window pages held now. Pages that were set aside ahead may be more than a running request needs."""
    return 0 if request.tables is None else len(request.tables.live_window_pages())
