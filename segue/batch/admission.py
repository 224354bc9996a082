"""Whether a request may start: every component must have room for what it and everybody running will come to need.

Where requests can be retracted, that is an estimate for full pages, which grow with the output; a step that fails takes
somebody off the device. Where they cannot, a running request must be able to reach its full length. A prefill worker
computes prompts only, and commits no more than those.
"""

from collections.abc import Iterable, Mapping

from segue.batch.lifecycle import Phase
from segue.batch.ratio import NewTokenRatio
from segue.batch.request import Request
from segue.batch.role import Role
from segue.cache.shape import CacheShape
from segue.errors import ContextTooLong
from segue.state.coverage import Coverage
from segue.state.needs import SLOTS_EACH, page_count, retained_pages_max, window_pages_max
from segue.state.spec import ComponentName

COVERAGE = Coverage("admission", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)
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
        ratio: NewTokenRatio | None = None,
    ) -> None:
        """`cached`: prefixes are cached, and requests retain what they can be matched at.

        `ratio` says how much output is to be expected where requests can be retracted.
        """
        COVERAGE.require(usable)
        self._usable = dict(usable)
        self._page_tokens = page_tokens
        self._window = window
        self._chunk_tokens = chunk_tokens
        self._max_len = max_len
        self._role = role
        self._cached = cached
        self._ratio = ratio

    def validate(self, request: Request) -> None:
        """Raises ContextTooLong when the request could not run even alone."""
        if request.max_len > self._max_len:
            raise ContextTooLong(
                f"request {request.request_id}: prompt of {request.prompt_len} tokens and max_tokens "
                f"{request.sampling.max_tokens} make {request.max_len}, this worker serves at most {self._max_len}; "
                "shorten the prompt or lower max_tokens"
            )
        needs = self._needs(request, self._last(request))
        if self._ratio is not None and ComponentName.WINDOW in needs:
            # Whoever computes its prompt: after it was taken off the device that may have to be done here.
            computed_here = self._window_pages(request, self._chunk_tokens)
            needs[ComponentName.WINDOW] = max(needs[ComponentName.WINDOW], computed_here)
        for component, units in needs.items():
            if units > self._usable[component]:
                raise ContextTooLong(
                    f"request {request.request_id} needs {units} units of the {component} pool, "
                    f"which has {self._usable[component]}"
                )

    def needs(self, request: Request) -> dict[ComponentName, int]:
        """Units of each component that the request is expected to hold from now on."""
        return self._needs(request, self._expected(request))

    def needs_for(self, request: Request, steps: int) -> dict[ComponentName, int]:
        """Units of each component that the request may come to hold within its next decode `steps`."""
        return self._needs(request, min(self._last(request), request.known_len + steps))

    def _needs(self, request: Request, positions: int) -> dict[ComponentName, int]:
        found: dict[ComponentName, int] = {}
        for component in self._usable:
            if component is ComponentName.FULL:
                foreign = request.lease.foreign if request.lease is not None else 0
                found[component] = self._full_pages(request, positions) + foreign
            elif component is ComponentName.WINDOW:
                found[component] = self._window_pages(request, self._stride(request))
            else:
                found[component] = SLOTS_EACH if self._cached is not None else 1
        return found

    def _full_pages(self, request: Request, positions: int) -> int:
        """What is set aside for a state that comes from elsewhere counts, however little output is expected: also of a
        request that is let in here, and for which a sender may be called instead.
        """
        off_device = request.phase is Phase.WAITING or request.phase is Phase.RETRACTED
        if request.phase is Phase.AWAITING or (request.recallable and off_device):
            positions = max(positions, request.known_len + headroom(request))
        held = 0 if request.tables is None else len(request.tables.full)
        return max(page_count(positions, self._page_tokens), held)

    def _window_pages(self, request: Request, stride: int) -> int:
        assert self._window is not None
        last = self._last(request)
        pages = window_pages_max(self._window, min(stride, last), self._page_tokens)
        reach = page_count(last, self._page_tokens)
        if self._cached is not None and self._cached.recurrent:
            pages += retained_pages_max(self._window, self._page_tokens)
            # A page that came, or was computed twice, may stand beside the tree's own of the same tokens.
            reach *= 2
        return max(min(pages, reach), _held(request))

    def fits(self, request: Request, committed: Iterable[Request], withheld: Mapping[ComponentName, int]) -> bool:
        """Whether the request fits beside all that the committed ones may come to hold and units nobody can use now."""
        room = self.spare(committed, withheld)
        return all(units <= room[component] for component, units in self.needs(request).items())

    def spare(self, committed: Iterable[Request], withheld: Mapping[ComponentName, int]) -> dict[ComponentName, int]:
        """Units beyond all that the committed requests may come to hold, and those nobody can use now."""
        room = self._usable_now(withheld)
        for other in committed:
            for component, units in self.needs(other).items():
                room[component] -= units
        return room

    def resumes(
        self, request: Request, committed: Iterable[Request], withheld: Mapping[ComponentName, int], steps: int
    ) -> bool:
        """Whether a retracted request fits beside the committed ones, with room for so many `steps` of everybody."""
        room = self._usable_now(withheld)
        for one in (*committed, request):
            for component, units in self.needs_for(one, steps).items():
                room[component] -= units
        return all(units >= 0 for units in room.values())

    def _usable_now(self, withheld: Mapping[ComponentName, int]) -> dict[ComponentName, int]:
        return {component: units - withheld.get(component, 0) for component, units in self._usable.items()}

    def foreign_room(self, request: Request) -> int:
        """How many full pages of others the request may pin beside its own and still reach its end alone."""
        needed = self._needs(request, self._last(request)).get(ComponentName.FULL, 0)
        return self._usable.get(ComponentName.FULL, 0) - needed

    def _last(self, request: Request) -> int:
        """How many positions can come to be computed here. The last token's own state never is."""
        if request.ends_with_prompt:
            return request.prompt_len
        return request.known_len if self._role is Role.PREFILL else request.max_len - 1

    def _expected(self, request: Request) -> int:
        """How many positions are expected to be computed here."""
        last = self._last(request)
        if self._ratio is None or last <= request.known_len:
            return last
        return request.known_len + self._ratio.expected(request)

    def _stride(self, request: Request) -> int:
        """Positions past the tail that may need pages at once, if it comes to so many."""
        match request.phase:
            case Phase.WAITING | Phase.EXTENDING | Phase.RETRACTED:
                return self._chunk_tokens
            case Phase.AWAITING:
                return max(1, headroom(request))
        return 1


def headroom(request: Request) -> int:
    """Tokens beyond the known ones for which a receiver sets pages aside: never more than the request can come to."""
    return min(HEADROOM_TOKENS, request.max_len - 1 - request.known_len)


def _held(request: Request) -> int:
    """Window pages held now. Pages that were set aside ahead may be more than a running request needs."""
    return 0 if request.tables is None else len(request.tables.live_window_pages())
