"""One-line mistakes in taking and resuming requests, each of which the named tests must see."""

from tests.mutants import Mutant

_TAKEN = ("tests/router/test_snapshots_taken.py",)
_RESUMED = ("tests/router/test_snapshots_resumed.py",)
_KEPT = ("tests/router/test_snapshots_kept.py",)
_PLACED = ("tests/router/test_snapshots_placed.py",)
_PARKED = ("tests/router/test_parked.py",)
_LATE = ("tests/router/test_read_late.py",)

_CHOICE = "router/choice.py"
_DISPATCH = "router/dispatch.py"
_DOOR = "router/door.py"
_EXPORT = "router/snapshots/export.py"
_FOLDERS = "router/snapshots/folders.py"
_INBOX = "router/inbox.py"
_LEG = "router/snapshot_leg.py"
_LINK = "router/link.py"
_PARKING = "router/snapshots/parking.py"
_RESUME = "router/snapshots/resume.py"
_RUNNING = "router/snapshots/running.py"
_STORED = "router/snapshots/stored.py"

MUTANTS = (
    Mutant(
        "what comes while an export is under way goes to the client",
        _INBOX,
        "while self.held or self._nothing_arrived:",
        "while self._nothing_arrived:",
        _TAKEN,
    ),
    Mutant(
        "without the worker's word an exported request is read on",
        _INBOX,
        "        if self._arrived.ended is None:\n            self._arrived.ended = Ended",
        "        if False:\n            self._arrived.ended = Ended",
        _TAKEN,
    ),
    Mutant(
        "what a stop string or a character holds back is sent when the request leaves",
        _CHOICE,
        "            if ended is not None and ended.snapshot_id:",
        "            if False:",
        _RESUMED,
    ),
    Mutant("a second export counts from the resume", _CHOICE, "else earlier.sent", "else Sent()", _RESUMED),
    Mutant(
        "the cached part of a prompt is forgotten at a resume",
        _CHOICE,
        "if self._earlier is None else self._earlier.cached_tokens",
        "",
        _PLACED,
    ),
    Mutant("text that was sent is sent again", _STORED, "told[sent.characters :]", "told", _RESUMED),
    Mutant("logprobs that were sent are sent again", _STORED, "reports[sent.reports :]", "reports", _RESUMED),
    Mutant(
        "tokens behind a stop string in the snapshot are read",
        _STORED,
        "        if text.stopped_at is not None:\n            break",
        "        if False:\n            break",
        _RESUMED,
    ),
    Mutant(
        "after a lost reply the stream goes on at once",
        _EXPORT,
        "            await target.inbox.settle(config.call_timeout_s)\n",
        "",
        _TAKEN,
    ),
    Mutant(
        "two exports of one request at once",
        _EXPORT,
        "        if inbox.held or choice.kept.parking:",
        "        if False:",
        _TAKEN,
    ),
    Mutant(
        "a client is let go before its worker has said what was cached",
        _EXPORT,
        "            await inbox.settle(self._shell.config.finish_wait_s)\n",
        "",
        _PLACED,
    ),
    Mutant(
        "a snapshot is resumed where it is not",
        _DISPATCH,
        "return {link.address for link in self._fleet.links} - kept.addresses",
        "return set()",
        _KEPT,
    ),
    Mutant(
        "a request that lost its worker goes on from the snapshot once more",
        _LEG,
        "state, self._state = self._state, None",
        "state = self._state",
        _RESUMED,
    ),
    Mutant(
        "a resumed request goes on with other weights",
        _DISPATCH,
        "self._begun = self._begun or bool(self._output)",
        "self._begun = self._begun",
        _PLACED,
    ),
    Mutant(
        "a resume waits for a prefill worker",
        _DISPATCH,
        "here = self._scoring or self._moved.waiting or self._kept.offered is not None",
        "here = self._scoring or self._moved.waiting",
        _PLACED,
    ),
    Mutant(
        "a resume names a prefill worker",
        _DISPATCH,
        "here = self._scoring or moved is not None or snapshot is not None",
        "here = self._scoring or moved is not None",
        _PLACED,
    ),
    Mutant(
        "a lost export is asked for by nobody",
        _LEG,
        "        if isinstance(self._state, Asked):\n            self._state = Offered",
        "        if False:\n            self._state = Offered",
        ("tests/router/test_snapshots_taken.py",),
    ),
    Mutant(
        "a refused export is asked for all the same",
        _EXPORT,
        "            target.choice.kept.undoubt(asked.snapshot_id)\n",
        "",
        ("tests/router/test_snapshots_taken.py",),
    ),
    Mutant("an extension stays behind", _DISPATCH, "            extension=self._spec.extension,\n", "", _PLACED),
    Mutant("a resumed request has all its time again", _RESUME, "min(timeout_s, left_s)", "timeout_s", _RESUMED),
    Mutant("a resumed request has no priority", _RESUME, "priority=request.priority", "priority=0", _PLACED),
    Mutant("a resumed request has no salt", _RESUME, "cache_salt=request.cache_salt", 'cache_salt=""', _PLACED),
    Mutant("a snapshot of another model is resumed", _RESUME, "if wanted not in served:", "if False:", _KEPT),
    Mutant(
        "a token counts as served whose character is not complete",
        _RUNNING,
        "if piece and not detokenizer.within_character:",
        "if piece:",
        _RESUMED,
    ),
    Mutant(
        "a token counts as served that may become a stop string",
        _RUNNING,
        "        if length > sent.characters:",
        "        if False:",
        _RESUMED,
    ),
    Mutant(
        "a token counts as served whose logprob was not sent",
        _RUNNING,
        "    if planned.sampling.logprobs is None:",
        "    if True:",
        _PLACED,
    ),
    Mutant(
        "a delete that failed at one worker is told as done",
        _FOLDERS,
        "if failed or not deleted:",
        "if not deleted:",
        _KEPT,
    ),
    Mutant("workers are asked for any name", _FOLDERS, "if not is_id(snapshot_id):", "if False:", _KEPT),
    Mutant("an empty admin key opens to an empty one", _DOOR, "if not self._admin_key:", "if False:", _TAKEN),
    Mutant("snapshots want the key of clients too", _DOOR, "elif self._api_key and", "if self._api_key and", _TAKEN),
    Mutant("parked beside another worker", _PARKING, " and self._shell.fleet.is_alone(link)", "", _PARKED),
    Mutant("parked by a router that ends", _PARKING, "not self._shell.draining and ", "", _PARKED),
    Mutant(
        "parked while somebody exports it", _PARKING, "and not inbox.held and not choice.kept.doubtful", "", _PARKED
    ),
    Mutant(
        "never parked when it was not ready once",
        _PARKING,
        "            return True",
        "            return False",
        _PARKED,
    ),
    Mutant("parked for nobody: it stays when its client has left", _PARKING, "if choice.over:", "if False:", _PARKED),
    Mutant(
        "parked, and told its client so",
        _DISPATCH,
        "(not ended.snapshot_id or self._kept.leave(ended.snapshot_id))",
        "not ended.snapshot_id",
        _PARKED,
    ),
    Mutant(
        "parked, and waits for a folder that nobody has any more",
        _DISPATCH,
        "if left_s > 0 and any(link.description and link.description.snapshots for link in self._fleet.links):",
        "if left_s > 0:",
        _PARKED,
    ),
    Mutant(
        "parked in a folder that the next worker does not read",
        _LEG,
        "            self._discard(state.snapshot.snapshot_id)\n",
        "",
        _PARKED,
    ),
    Mutant(
        "parked, and computed beside whoever resumes it",
        _LEG,
        "if isinstance(error, SnapshotClaimed | SnapshotNotFound):",
        "if False:",
        _PARKED,
    ),
    Mutant(
        "parked, claimed, and never asked for again",
        "router/snapshots/leftovers.py",
        "        except SnapshotNotFound:",
        "        except ServingError:",
        _PARKED,
    ),
    Mutant(
        "parked as soon as its worker drains",
        _PARKING,
        "return keeps and link.ending and",
        "return keeps and link.draining and",
        _PARKED,
    ),
    Mutant(
        "parked, and computed again since one worker cannot use it",
        _LEG,
        "if isinstance(error, _USELESS):",
        "if True:",
        _PARKED,
    ),
    Mutant(
        "a worker that can compute no prompt keeps others from being parked",
        "router/fleet.py",
        "(_is_decode(link) and _is_decode(other)) or self.has_prefill(other, now)",
        "True",
        _PARKED,
    ),
    Mutant(
        "what is kept for somebody's own use is resumed by hand",
        _STORED,
        "if (own := _OWN_USE.get(request.kind)) is not None:",
        "if (own := None) is not None:",
        _KEPT,
    ),
    Mutant(
        "a worker that cannot be asked is left out",
        _FOLDERS,
        "            if link not in ready\n",
        "            if False\n",
        _KEPT,
    ),
    Mutant(
        "a disk that hangs gets one call after another",
        "router/snapshots/leftovers.py",
        "if keeps and link not in self._asking:",
        "if keeps:",
        ("tests/router/test_leftovers.py",),
    ),
    Mutant(
        "a worker that froze while it accepts is waited for",
        _LINK,
        "        for waiting in self._calls.values():\n            _wake(waiting)\n",
        "",
        ("tests/router/test_workers_lost.py",),
    ),
    Mutant(
        "a grace outlives the worker that it was for",
        _LINK,
        "            self._grace.cancel()\n            self._grace = None\n        self._epoch",
        "            self._grace = None\n        self._epoch",
        ("tests/router/test_probe.py",),
    ),
    Mutant(
        "what an earlier process said drains its successor",
        _DISPATCH,
        "link.draining = link.draining or link.is_still(self._worker_id)",
        "link.draining = True",
        _LATE,
    ),
    Mutant("a choice is there until that is read", _DISPATCH, " or self._inbox.settled:", ":", _LATE),
    Mutant(
        "an earlier process's fault is blamed on its successor",
        _DISPATCH,
        "        if link.is_still(self._worker_id):",
        "        if True:",
        _LATE,
    ),
    Mutant(
        "parked, and not waited for until the worker has ended",
        _DISPATCH,
        "if self._kept.parked and self._is_home_there():",
        "if False:",
        _PARKED,
    ),
)
