"""What a step raises when the model gave some of its requests no token to choose; the others lose nothing."""

from segue.batch.request import Request
from segue.batch.step import StepOutput
from segue.errors import ServingError

NO_TOKEN = -1
"""Stands in a StepOutput where a row has no token."""


class SamplingFailed(ServingError):
    """Rows have no best logit: NaN, infinity, or no token left.

    The other rows are fine, and their state has moved on: `output` holds their tokens (NO_TOKEN for the failed ones) so
    that the step can be committed without the requests in `failed`.
    """

    def __init__(self, failed: tuple[Request, ...], output: StepOutput) -> None:
        names = ", ".join(request.request_id for request in failed)
        super().__init__(f"the model's logits leave no token to choose (NaN, infinity, or all masked) for {names}")
        self.failed = failed
        self.output = output
