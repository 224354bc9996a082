"""What a sender says of a first token is all that its request asked for, or the handoff has failed."""

from dataclasses import replace

import pytest

from decode_service.fetch import require_report
from segue.batch.submission import Moved
from segue.errors import TransferFailed
from segue.handoff import Finished
from segue.ids import Handle
from segue.tokens import EmittedToken
from segue.wire import Usage
from tests.decode_service.router_end import spec

BARE = Finished(None, EmittedToken(5, None), Usage(3, 1), ())


def test_a_first_token_without_the_logprob_that_was_asked_for_is_refused() -> None:
    asked = spec("q")
    asked = replace(asked, sampling=replace(asked.sampling, logprobs=0))
    with pytest.raises(TransferFailed, match="w1 sent a first token without the logprob"):
        require_report(asked, BARE, "w1")
    require_report(asked, replace(BARE, token=EmittedToken(5, -0.5)), "w1")


def test_what_is_not_told_needs_no_logprob() -> None:
    asked = spec("q")
    require_report(replace(asked, sampling=replace(asked.sampling, logprobs=None)), BARE, "w1")
    moved = replace(asked, sampling=replace(asked.sampling, logprobs=0), moved=Moved("w1", Handle(1), 1))
    require_report(moved, BARE, "w1")
