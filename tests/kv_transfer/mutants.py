"""One-line mistakes in the transfer policies, each of which the named tests must see."""

from tests.mutants import Mutant

# The examples of a policy first, which are quick; the machine sees most of these too, but needs luck for some.
_MACHINE = "tests/kv_transfer/test_handoff_machine.py"
_RECEIVER = ("tests/kv_transfer/test_reservations.py", _MACHINE)
_SENDER = ("tests/kv_transfer/test_sending.py", _MACHINE)
_PLAN = ("tests/kv_transfer/test_plan.py",)
_BLOCKS = ("tests/kv_transfer/test_blocks.py",)
_DEATHS = ("tests/kv_transfer/test_process.py", "tests/kv_transfer/test_peers.py")

_RECEIVER_FILE = "kv_transfer/reservations.py"
_SENDER_FILE = "kv_transfer/sending.py"
_PLAN_FILE = "kv_transfer/plan.py"
_BLOCKS_FILE = "kv_transfer/blocks.py"
_PROCESS_FILE = "kv_transfer/process.py"
_PEERS_FILE = "kv_transfer/peers.py"

MUTANTS = (
    Mutant(
        "a cancelled promise is free at once instead of quarantined",
        _RECEIVER_FILE,
        "        self._quarantine(promise)\n        return _has(promise, Hold.QUARANTINED)",
        "        self._settle(promise)\n        return False",
        _RECEIVER,
    ),
    Mutant(
        "an expired lease frees instead of quarantining",
        _RECEIVER_FILE,
        "            self._quarantine(promise)\n        return [promise.ticket for promise in over]",
        "            self._settle(promise)\n        return [promise.ticket for promise in over]",
        _RECEIVER,
    ),
    Mutant(
        "a cancelled promise keeps what had arrived for ever",
        _RECEIVER_FILE,
        "            if promise.parts[part].hold is Hold.ARRIVED:",
        "            if promise.parts[part].hold is Hold.QUARANTINED:",
        _RECEIVER,
    ),
    Mutant(
        "a message of another attempt counts",
        _RECEIVER_FILE,
        "        return promise if promise is not None and promise.ticket == ticket else None",
        "        return promise",
        _RECEIVER,
    ),
    Mutant(
        "what arrives late is taken out of quarantine",
        _RECEIVER_FILE,
        "        if held is None or held.hold is not Hold.WRITABLE:",
        "        if held is None:",
        _RECEIVER,
    ),
    Mutant(
        "an admitted part stays promised",
        _RECEIVER_FILE,
        "        self._drop(promise, part)\n        return held.rows",
        "        return held.rows",
        _RECEIVER,
    ),
    Mutant(
        "a refused promise keeps the units it had got",
        _RECEIVER_FILE,
        "            self._free(rows, Owner.RESERVED)\n            raise",
        "            raise",
        _RECEIVER,
    ),
    Mutant(
        "one dead peer frees everybody's promises",
        _RECEIVER_FILE,
        "if p.peer == peer]",
        "if p.peer]",
        _RECEIVER,
    ),
    Mutant(
        "a dead peer is promised units",
        _RECEIVER_FILE,
        "        self._dead.add(peer)\n",
        "",
        _RECEIVER,
    ),
    Mutant(
        "reservation numbers are used again",
        _RECEIVER_FILE,
        "self._next = ReservationId(self._next + 1)",
        "self._next = ReservationId(self._next % 3 + 1)",
        _RECEIVER,
    ),
    Mutant(
        "the sender's word does not end a quarantine",
        _RECEIVER_FILE,
        "            if held.hold is Hold.ARRIVED:\n                continue",
        "            if held.hold is not Hold.WRITABLE:\n                continue",
        _RECEIVER,
    ),
    Mutant(
        "the sender's word frees what has arrived and waits for admission",
        _RECEIVER_FILE,
        "            if held.hold is Hold.ARRIVED:\n                continue",
        "            if held.hold is Hold.QUARANTINED and False:\n                continue",
        _RECEIVER,
    ),
    Mutant(
        "settled is said before the last write has settled",
        _SENDER_FILE,
        "        if entry.closed and not any(entry.posted.values()) and ",
        "        if entry.closed and ",
        _SENDER,
    ),
    Mutant(
        "a part is complete while a write of it is in flight",
        _SENDER_FILE,
        "                if not entry.waiting[part] and not entry.posted[part]:",
        "                if not entry.waiting[part]:",
        _SENDER,
    ),
    Mutant(
        "a part is complete while a write of it waits to be posted",
        _SENDER_FILE,
        "                if not entry.waiting[part] and not entry.posted[part]:",
        "                if not entry.posted[part]:",
        _SENDER,
    ),
    Mutant(
        "a grant is taken after its withdrawal",
        _SENDER_FILE,
        "        if asked_at is None or self._is_fenced(ticket.reservation):",
        "        if asked_at is None:",
        _SENDER,
    ),
    Mutant(
        "a withdrawal is forgotten with many after it",
        _SENDER_FILE,
        "        return reservation <= self._fenced_up_to or reservation in self._fenced",
        "        return reservation in self._fenced",
        _SENDER,
    ),
    Mutant(
        "a closed ticket's queue is still posted",
        _SENDER_FILE,
        "            if entry.closed:\n                continue\n            entry.waiting",
        "            entry.waiting",
        _SENDER,
    ),
    Mutant(
        "the sender's lease counts from the grant's arrival",
        _SENDER_FILE,
        "asked_at + lease_s, set(parts))",
        "self._clock() + lease_s, set(parts))",
        _SENDER,
    ),
    Mutant(
        "the sender's lease counts from the renewal's arrival",
        _SENDER_FILE,
        "max(entry.lease_until, sent_at + entry.lease_s)",
        "max(entry.lease_until, self._clock() + entry.lease_s)",
        _SENDER,
    ),
    Mutant(
        "a sender posts without a look at its lease",
        _SENDER_FILE,
        "        self.expire()\n        posts",
        "        posts",
        _SENDER,
    ),
    Mutant(
        "the first page of the window is left out",
        _PLAN_FILE,
        "            yield Piece(Part.STATE, component, self._first_window_page(), stop if self.window else 0)",
        "            yield Piece(Part.STATE, component, self._first_window_page() + 1, stop if self.window else 0)",
        _PLAN,
    ),
    Mutant(
        "the last partial page is left out",
        _PLAN_FILE,
        "        stop = page_count(now, self.page_tokens) if ended else now // self.page_tokens",
        "        stop = now // self.page_tokens",
        _PLAN,
    ),
    Mutant(
        "a partial page travels before it is complete",
        _PLAN_FILE,
        "        stop = page_count(now, self.page_tokens) if ended else now // self.page_tokens",
        "        stop = page_count(now, self.page_tokens)",
        _PLAN,
    ),
    Mutant(
        "what the receiver holds is sent again",
        _PLAN_FILE,
        "        first = max(self.terms.held_tokens, computed) // self.page_tokens",
        "        first = computed // self.page_tokens",
        _PLAN,
    ),
    Mutant(
        "the checkpoint's window pages travel twice",
        _PLAN_FILE,
        "                    stop = min(page_count(depth, self.page_tokens), self._first_window_page())",
        "                    stop = page_count(depth, self.page_tokens)",
        _PLAN,
    ),
    Mutant(
        "neighbours in one arena only become one block",
        _BLOCKS_FILE,
        "(blocks[1:, :2] != ends).any(axis=1)",
        "(blocks[1:, :2] != ends).all(axis=1)",
        _BLOCKS,
    ),
    Mutant(
        "offsets are 32 bits wide",
        _BLOCKS_FILE,
        "    return merge(np.concatenate(cut))",
        "    return merge(np.concatenate(cut).astype(np.int32).astype(np.int64))",
        _BLOCKS,
    ),
    Mutant(
        "a unit that the arena does not have is written",
        _BLOCKS_FILE,
        "bool((units >= limit).any())",
        "bool((units > limit).any())",
        _BLOCKS,
    ),
    Mutant(
        "a process of other namespaces is judged",
        _PROCESS_FILE,
        "process.place != own_process().place",
        "process.boot != own_process().boot",
        _DEATHS,
    ),
    Mutant(
        "a number that was given away stands for its first owner",
        _PROCESS_FILE,
        "not in (process.start_ticks, None)",
        "is None",
        _DEATHS,
    ),
    Mutant(
        "a process is gone although the kernel still sends what it wrote",
        _PROCESS_FILE,
        "        return not self._unsent\n",
        "        return True\n",
        _DEATHS,
    ),
    Mutant(
        "whatever is left to send, whoever left it and when, keeps a process",
        _PROCESS_FILE,
        "unsent if self._unsent is None else self._unsent & unsent",
        "unsent",
        _DEATHS,
    ),
    Mutant(
        "who cannot tell is believed to say that a peer is gone",
        _PEERS_FILE,
        "        if life is Life.GONE:",
        "        if life is not Life.ALIVE:",
        _DEATHS,
    ),
    Mutant(
        "a peer that is forgotten is not watched any more",
        _PEERS_FILE,
        "        if (peer := self._peers.pop(worker_id, None)) is None:\n            return\n",
        "        self._watches.pop(worker_id, None)\n"
        "        if (peer := self._peers.pop(worker_id, None)) is None:\n            return\n",
        _DEATHS,
    ),
)
