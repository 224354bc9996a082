"""The way of one choice through prefill workers: which one is tried, and which ones have failed it."""

from router.link import Link
from router.prefill_worker import PrefillWorker
from router.prefills import Prefills
from segue.batch.role import Role
from segue.errors import PrefillUnavailable, QueueFull, ServingError, TransferFailed


class PrefillLeg:
    """At most one prefill worker at a time has the choice; `succeed`, `blamed` or `withdraw` ends that."""

    def __init__(self, prefills: Prefills) -> None:
        self._prefills = prefills
        self._worker: PrefillWorker | None = None
        self._failed: set[str] = set()
        self._fingerprint = ""

    def begin(self, link: Link, now: float) -> str | None:
        """What address a decode worker is to call: empty for one that computes prompts itself, None if none is able."""
        assert self._worker is None, "the choice is on its way already"
        about = link.description
        assert about is not None, "a worker is described before it is offered anything"
        if about.role != Role.DECODE:
            return ""
        self._fingerprint = about.fingerprint
        worker = self._prefills.pick(about.fingerprint, self._failed, now)
        if worker is None:
            return None
        worker.begin(now)
        self._worker = worker
        return worker.address

    def succeed(self) -> None:
        """The first token came."""
        if self._worker is not None:
            self._worker.succeed()
            self._worker = None

    def blamed(self, error: ServingError, now: float) -> bool:
        """Whether the choice failed on this leg, so that it may be tried through another worker."""
        worker = self._worker
        if worker is None:
            return False
        if isinstance(error, QueueFull):
            # No fault of the worker: another may have room, but nobody is asked twice.
            self.withdraw()
            self._failed.add(worker.address)
            return self._prefills.any_able(self._fingerprint, now, self._failed)
        if not isinstance(error, PrefillUnavailable | TransferFailed):
            self.withdraw()
            return False
        self._failed.add(worker.address)
        worker.fail(error, now)
        self._worker = None
        return True

    def withdraw(self) -> None:
        """It will not be known what became of the choice there."""
        if self._worker is not None:
            self._worker.withdraw()
            self._worker = None
