"""Messages of a session that reach the worker damaged: the stream ends, what runs goes on, and nothing is left over."""

import grpc
import pytest

from segue.errors import ServingError
from segue.ids import Handle
from segue.wire import Cancel, Resume, generate_to_proto, router_message_to_proto
from tests.decode_service.engines import ScriptedRunner
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import RouterEnd, spec
from tests.decode_service.served import served
from tests.decode_service.test_sessions import begun, emptied, entries
from tests.support.wire_proxy import Messages, WireProxy


@pytest.mark.parametrize("left", [0, 1, 3])
async def test_a_session_message_that_is_cut_ends_the_stream_and_no_request(left: int) -> None:
    gate = Gate()
    whole = router_message_to_proto(Cancel(Handle(1), 1)).SerializeToString()

    async def cut(messages: Messages) -> Messages:
        async for message in messages:
            yield message[:left] if message == whole else message

    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        WireProxy(address) as proxy,
        RouterEnd(proxy.address) as router,
    ):
        proxy.up["Session"] = cut
        async with router.attach() as stream:
            handle = await begun(router, gate, stream, tokens=2, max_tokens=6)
            await stream.send(Cancel(handle, 1))
            with pytest.raises(ServingError):
                await stream.until_end()
        gate.open()
        async with router.attach("r", Resume(handle, 1, 2)) as again:
            await again.until(lambda a: handle in a.ended)
        assert again.tokens[handle] == entries(range(2, 6))
        assert not worker.broken.done()
        await emptied(worker, router)


async def test_a_request_that_is_cut_anywhere_is_refused_or_served_and_leaves_nothing() -> None:
    raw = generate_to_proto(spec(max_tokens=3)).SerializeToString()
    async with served() as (worker, address), RouterEnd(address) as router, router.attach() as stream:
        async with grpc.aio.insecure_channel(address) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/segue.v1.Worker/Generate")
            codes: list[grpc.StatusCode] = []
            for length in range(len(raw)):
                try:
                    await call(raw[:length], timeout=10)
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
        assert len(codes) > len(raw) // 2
        # None of them is a failure of the worker; UNKNOWN is gRPC's word for what it cannot parse.
        assert not {grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED} & set(codes)
        assert not worker.broken.done()
        handle = await router.generate(spec("next", max_tokens=3))
        await stream.until(lambda a: handle in a.ended)
        assert stream.tokens[handle] == entries(range(3))
        await emptied(worker, router)
