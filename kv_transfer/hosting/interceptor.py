"""Turns ServingErrors of any handler into gRPC statuses whose trailing metadata keeps the error class."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, cast

import grpc
import grpc.aio

from segue.errors import ServingError
from segue.wire import error_metadata, error_to_status

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The one place where errors become statuses."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                _unary(cast(Callable[[Any, Context], Awaitable[Any]], handler.unary_unary)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                _stream(cast(Callable[[Any, Context], AsyncIterator[Any]], handler.stream_stream)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return handler


def _unary(call: Callable[[Any, Context], Awaitable[Any]]) -> Any:  # noqa: ANN401
    async def answer(request: object, context: Context) -> object:
        try:
            return await call(request, context)
        except ServingError as error:
            await _abort(context, error)

    return answer


def _stream(call: Callable[[Any, Context], AsyncIterator[Any]]) -> Any:  # noqa: ANN401
    async def answer(requests: object, context: Context) -> AsyncIterator[object]:
        try:
            async for message in call(requests, context):
                yield message
        except ServingError as error:
            await _abort(context, error)

    return answer


async def _abort(context: Context, error: ServingError) -> NoReturn:
    status, details = error_to_status(error)
    await context.abort(status, details, error_metadata(error))
    raise AssertionError("abort raises")
