"""Scores of a prompt reach its router in order, once each, before the output; also over streams that break."""

import pytest

from decode_service import session
from decode_service.ledger import Ledger
from segue.batch.news import EngineNews
from segue.batch.request import FinishReason
from segue.batch.scores import PromptScores, Scores
from segue.errors import InvalidRequest
from segue.ids import Handle, RouterId
from segue.tokens import EmittedToken
from segue.wire import Ended, Resume, Top
from tests.decode_service.engines import ScriptedRunner, expected, expected_score
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import RouterEnd, spec
from tests.decode_service.served import served

PROMPT = tuple(range(20, 120))


def scores(positions: range) -> dict[int, tuple[float, Top]]:
    return {position: expected_score(PROMPT, position) for position in positions}


@pytest.mark.parametrize("first", [0, 1, 31, 32, 97, 98])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_every_score_comes_once_and_before_the_output(first: int, max_tokens: int) -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach() as stream:
        asked = spec(prompt=PROMPT, max_tokens=max_tokens, logprobs=2, score_from=first)
        handle = await router.generate(asked)
        await stream.until(lambda a: handle in a.ended)
        assert stream.scores[handle] == scores(range(first + 1, 100))
        assert stream.tokens.get(handle, []) == [(1, index, expected(PROMPT, index)) for index in range(max_tokens)]
        ended = stream.ended[handle]
        assert ended.reason is FinishReason.LENGTH
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (100, max_tokens)
        assert all(pool.free + pool.sink == pool.capacity for pool in (await router.status()).pools)


@pytest.mark.parametrize("seen", [1, 20, 33])
async def test_scores_that_the_router_did_not_see_are_sent_again(seen: int) -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (_, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            gate.close()
            handle = await router.generate(spec(prompt=PROMPT, max_tokens=2, logprobs=2, score_from=0))
            gate.allow(1)
            await stream.until(lambda a: handle in a.scores)
            assert stream.scores[handle] == scores(range(1, 33)), "a chunk of 32 was scored"
        gate.open()
        async with router.attach("r", Resume(handle, 1, 0, seen)) as again:
            await again.until(lambda a: handle in a.ended)
            assert again.scores[handle] == scores(range(seen, 100))
            assert len(again.tokens[handle]) == 2


@pytest.mark.parametrize("wanted", [0, 34, 101])
async def test_a_resume_at_a_score_that_is_none_is_refused(wanted: int) -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (_, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            gate.close()
            handle = await router.generate(spec(prompt=PROMPT, max_tokens=0, logprobs=2, score_from=0))
            gate.allow(1)
            await stream.until(lambda a: handle in a.scores)
        with pytest.raises(InvalidRequest, match=f"cannot resume at {wanted}"):
            async with router.attach("r", Resume(handle, 1, 0, wanted)):
                pass
        gate.open()


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (spec(prompt=PROMPT, max_tokens=0), "max_tokens"),
        (spec(prompt=PROMPT, score_from=0), "logprobs"),
        (spec(prompt=PROMPT, logprobs=1, score_from=99), "score_from"),
        (spec(prompt=(5,), logprobs=1, score_from=0), "score_from"),
        (spec(prompt=PROMPT, logprobs=1, score_from=0, max_tokens=0, emitted=(5,)), "max_tokens"),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_name(asked: object, param: str) -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach():
        with pytest.raises(InvalidRequest) as refused:
            await router.generate(asked)  # type: ignore[arg-type]
        assert refused.value.param == param


def test_scores_of_long_prompts_are_cut_into_messages_and_the_rest_waits_behind_them() -> None:
    """Two prompts whose scores came at once, for a router that took nothing meanwhile."""
    ledger = Ledger(remember_s=10.0, remembered_max=10, clock=lambda: 0.0)
    router = ledger.open_session(RouterId("r"))
    count, width = session.SCORE_NUMBERS_MAX, 4
    handles: list[Handle] = []
    for name in ("a", "b"):
        asked = spec(name, prompt=(5,) * (count + 2), max_tokens=2, logprobs=width - 1, score_from=0)
        request, _ = ledger.open(router, asked)
        ledger.accept(request)
        handles.append(request.handle)
        top = tuple((token, -1.0) for token in range(width - 1))
        told = Scores(1, [-1.0] * count, [top] * count)
        ledger.apply(EngineNews(1, scores=[PromptScores(request.handle, 1, told)]))
        ended = [Ended(request.handle, 1, FinishReason.LENGTH)]
        ledger.apply(EngineNews(2, [request.handle], [1], [0], [EmittedToken(9, -1.0)], ended))
    reached = dict.fromkeys(handles, 1)
    over: list[Handle] = []
    while router.news.is_set():
        news = router.take()
        assert news is not None
        assert sum(len(of.scores.logprobs) for of in news.scores) * width <= session.SCORE_NUMBERS_MAX
        for of in news.scores:
            assert of.scores.first == reached[of.handle]
            reached[of.handle] = of.scores.stop
        for handle in news.handles:
            assert reached[Handle(handle)] == count + 1, "a token came before the scores"
        over += [ended.handle for ended in news.ended]
    assert sorted(over) == handles
    assert router.take() is None


def test_of_a_request_that_its_router_let_go_of_no_scores_are_sent() -> None:
    ledger = Ledger(remember_s=10.0, remembered_max=10, clock=lambda: 0.0)
    router = ledger.open_session(RouterId("r"))
    request, _ = ledger.open(router, spec(prompt=PROMPT, max_tokens=0, logprobs=0, score_from=0))
    ledger.accept(request)
    ledger.apply(EngineNews(1, scores=[PromptScores(request.handle, 1, Scores(1, [-1.0], [()]))]))
    request.leaving = True
    assert router.take() is None
