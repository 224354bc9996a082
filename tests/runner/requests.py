"""Requests as the sampler sees them: a prompt, an output so far, and parameters."""

from collections.abc import Sequence

from segue.batch.request import Request
from segue.batch.sampling import SamplingParams
from segue.ids import Handle, RequestId
from segue.tokens import EmittedToken, token_array


def request_with(sampling: SamplingParams, prompt: Sequence[int] = (1,), output: Sequence[int] = ()) -> Request:
    return Request(
        handle=Handle(1),
        request_id=RequestId(f"seed-{sampling.seed}"),
        attempt=1,
        prompt=token_array(prompt),
        sampling=sampling,
        output=[EmittedToken(token, 0.0) for token in output],
    )
