"""What was promised to one request is not lost to it because another one ended, or took the room meanwhile."""

from dataclasses import replace

import torch

from decode_service.commands import Asked
from decode_service.intake import CallAgain, Intake
from decode_service.station import DecodeStation
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.plan import Side
from kv_transfer.receiver import Receiver
from kv_transfer.reservations import Reservations
from segue.batch.ratio import RetractionRules
from segue.batch.role import Role
from segue.handoff import Ask
from segue.ids import Handle, WorkerId
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName
from segue.state.storage import Storage
from tests.decode_service import router_end
from tests.decode_service.engines import PAGE, STATE
from tests.decode_service.test_intake import H1, H2, Door, door_of
from tests.support.policies import Clock, rig, spec

COMPONENTS = frozenset({ComponentName.FULL, ComponentName.RECURRENT})


def test_a_recalled_output_whose_room_was_taken_waits_for_room_again() -> None:
    rules = RetractionRules(ratio_start=0.0, ratio_floor=0.0)
    made = rig(
        role=Role.DECODE,
        components=COMPONENTS,
        page_tokens=PAGE,
        pages=88 // PAGE,
        slots=9,
        cached=True,
        backups=0,
        rules=rules,
    )
    forms = layouts(STATE, PAGE, Shard())
    storage = Storage(forms, {name: pool.capacity for name, pool in made.pools.items()}, torch.device("cpu"))
    reservations = Reservations(made.pools, Clock(), lease_s=30.0)
    intake = Intake(made.engine, Receiver(reservations, storage, Side(forms, PAGE, None)), Clock())
    door = Door(made, intake, Clock())
    prompt = tuple(range(40, 60))
    made.engine.submit(spec("first", prompt, max_tokens=1), H1)
    while made.engine.live_requests():
        made.step()
    made.engine.submit(spec("runs", 12, max_tokens=60, ignore_eos=True), H2)
    made.step()
    going_on = spec("goes on", prompt, max_tokens=30, emitted=(5, 6, 7, 8))
    assert not made.engine.expect(going_on, Handle(3), extend_max=8)
    assert made.tree is not None
    for name, pool in made.pools.items():
        made.tree.forest.evict(name, pool.capacity)
    door.turn()
    intake.call_again()
    (reply,) = intake.take_replies()
    assert isinstance(reply.message, CallAgain)
    request = next(one for one in made.engine.live_requests() if one.handle == 3)
    while request.tables is not None:
        made.step()
    intake.asked(Asked(Handle(3), 1, WorkerId("p"), 1, Ask(1, 24, None), reply.message.call))
    intake.grant_promised()
    door.note_ended()
    assert request in made.engine.live_requests()


def test_a_deadline_that_passes_during_a_turn_costs_no_other_request_its_room() -> None:
    door = door_of(cached=False)
    asked = replace(router_end.spec("q1", max_tokens=8), prompt=tuple(range(3, 73)))
    door.engine.expect(replace(asked, deadline_s=5.0), H1)
    door.intake.expect(H1, 1)
    door.ask(H1, 70)
    door.turn()
    door.engine.expect(replace(asked, request_id=router_end.spec("q2", max_tokens=8).request_id), H2)
    door.intake.expect(H2, 1)
    door.ask(H2, 70)
    times = iter([0.0])
    door.engine._clock = lambda: next(times, 6.0)
    station = DecodeStation(door.engine, door.intake, TransferConfig())
    ended = [
        one
        for _ in range(3)
        if (news := station.turn()) is not None
        for of_engine in news.engine
        for one in of_engine.ended
    ]
    assert [one.handle for one in ended] == [H1]
