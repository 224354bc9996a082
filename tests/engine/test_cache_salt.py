"""The salt of a request reaches the engine of every worker that has part in it."""

from dataclasses import replace

from segue.batch.role import Role
from segue.ids import Handle, WorkerId
from tests.support.policies import rig, spec

SALTED = replace(spec("q"), cache_salt="s")


def test_a_prompt_computed_for_another_worker_keeps_its_salt() -> None:
    made = rig(role=Role.PREFILL)
    made.engine.submit_for(WorkerId("receiver"), SALTED, Handle(1))
    assert [request.cache_salt for request in made.engine.take_due()] == ["s"]


def test_a_request_whose_state_comes_from_another_worker_keeps_its_salt() -> None:
    made = rig(role=Role.DECODE)
    made.engine.expect(SALTED, Handle(1))
    made.engine.ask(Handle(1), 1)
    made.step()
    assert [request.cache_salt for request in made.engine.take_promised()] == ["s"]


def test_a_request_that_a_worker_computes_itself_keeps_its_salt() -> None:
    made = rig()
    made.engine.submit(SALTED, Handle(1))
    made.step()
    assert [row.request.cache_salt for row in made.runner.plans[-1].rows] == ["s"]
