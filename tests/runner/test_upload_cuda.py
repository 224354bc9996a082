"""On a CUDA device uploaded arrays are what they were, and parts of one piece of memory."""

import pytest
import torch

from segue.runner.upload import upload
from tests.runner.test_upload import arrays

pytestmark = pytest.mark.gpu


def test_uploaded_arrays_are_views_of_one_copy() -> None:
    device = torch.device("cuda")
    # More uploads at once than there is page-locked memory for without using some again.
    rounds = [arrays(1 + number % 300) for number in range(500)]
    found = [upload(given, device) for given in rounds]
    for views, given in zip(found, rounds, strict=True):
        assert [one.tolist() for one in views] == [one.tolist() for one in given]
        assert {one.untyped_storage().data_ptr() for one in views} == {views[0].data_ptr()}
        assert not any(one.data_ptr() % 16 for one in views)
