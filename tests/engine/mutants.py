"""One-line mistakes in how state enters and leaves an engine, each of which the named tests must see."""

from tests.mutants import Mutant

_RECEIVING = ("tests/engine/test_receiving.py", "tests/engine/test_decode_machine.py")
_HANDING = ("tests/engine/test_handing_over.py", "tests/engine/test_prefill_machine.py")
_SLOTS = ("tests/state/test_layout.py",)

MUTANTS = (
    Mutant(
        "pages that were set aside ahead are not committed",
        "segue/batch/admission.py",
        "page_count(positions, self._page_tokens)), _held(request))",
        "page_count(positions, self._page_tokens)), 0)",
        _RECEIVING,
    ),
    Mutant(
        "a promise commits no headroom",
        "segue/batch/admission.py",
        "                return max(1, headroom(request))",
        "                return 1",
        _RECEIVING,
    ),
    Mutant(
        "headroom goes past the request's end",
        "segue/batch/admission.py",
        "    return min(HEADROOM_TOKENS, request.max_len - 1 - request.known_len)",
        "    return HEADROOM_TOKENS",
        _RECEIVING,
    ),
    Mutant(
        "quarantined units are promised",
        "segue/batch/admission.py",
        "units - withheld.get(component, 0)",
        "units",
        _RECEIVING,
    ),
    Mutant(
        "promised requests are not committed",
        "segue/batch/scheduler.py",
        "            committed = (*self._running, *self.incoming.promised)",
        "            committed = self._running",
        _RECEIVING,
    ),
    Mutant(
        "a promised request that ends keeps its promise",
        "segue/batch/incoming.py",
        "        for place in (self._unasked, self._line, self._promised, self._news):",
        "        for place in (self._unasked, self._line, self._news):",
        _RECEIVING,
    ),
    Mutant(
        "a request that ended is still told of its promise",
        "segue/batch/incoming.py",
        "        for place in (self._unasked, self._line, self._promised, self._news):",
        "        for place in (self._unasked, self._line, self._promised):",
        _RECEIVING,
    ),
    Mutant(
        "a prompt starts before it is granted",
        "segue/batch/turns.py",
        "        return request.handle in self._granted or ends_with_first_token(request)",
        "        return True",
        _HANDING,
    ),
    Mutant(
        "receivers are asked without bound",
        "segue/batch/turns.py",
        "            if pending.get(receiver, 0) >= self._ahead:",
        "            if pending.get(receiver, 0) >= 99:",
        _HANDING,
    ),
    Mutant(
        "a prefill worker commits whole outputs",
        "segue/batch/admission.py",
        "        return request.known_len if self._role is Role.PREFILL else request.max_len - 1",
        "        return request.max_len - 1",
        _HANDING,
    ),
    Mutant(
        "what is read is freed when its request ends",
        "segue/engine.py",
        "        if not touched and not request.pinned:",
        "        if not touched:",
        _HANDING,
    ),
    Mutant(
        "what a step touches is freed when nobody reads it",
        "segue/engine.py",
        "        if not touched and not request.pinned:",
        "        if not request.pinned:",
        _HANDING,
    ),
    Mutant(
        "a handed-over prompt lives on",
        "segue/engine.py",
        "            self._close(request, Phase.FINISHED)\n        self._release_ended(request)\n\n    # Steps",
        "            pass\n        self._release_ended(request)\n\n    # Steps",
        _HANDING,
    ),
    Mutant(
        "a slot in use can be cleared",
        "segue/state/recurrent.py",
        '        assert not self._used[slot], f"slot {slot} holds a state already"\n',
        "",
        _SLOTS,
    ),
)
