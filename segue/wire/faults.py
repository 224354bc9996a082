"""Errors across a gRPC boundary; knows nothing of what raised them.

The class travels by its code in trailing metadata, so that the receiver raises the same one.
"""

from urllib.parse import quote, unquote

import grpc

from segue.errors import PoolExhausted, ServingError, WorkerUnavailable, error_kinds

ERROR_CODE_KEY = "segue-error-code"
ERROR_PARAM_KEY = "segue-error-param"

# Statuses that gRPC itself produces when the peer or the path to it is gone.
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


def error_to_status(error: ServingError) -> tuple[grpc.StatusCode, str]:
    """The status and details that a servicer answers with; `error_metadata` goes beside them."""
    return grpc.StatusCode[error.kind.grpc], error.message


def error_metadata(error: ServingError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata that lets the receiver rebuild the class. Values are percent-encoded: metadata is ASCII."""
    pairs = [(ERROR_CODE_KEY, error.kind.code)]
    if error.param is not None:
        pairs.append((ERROR_PARAM_KEY, quote(error.param)))
    return tuple(pairs)


def error_from_code(code: str, message: str, param: str | None = None) -> ServingError:
    """The error a peer meant. An unknown code (a newer peer) is a plain ServingError with its message."""
    cls = error_kinds().get(code, ServingError)
    if cls is PoolExhausted:
        # The counts are the peer's own affair; to its caller it is a worker without room.
        return WorkerUnavailable(message, param=param)
    return cls(message, param=param)


def error_from_rpc(failure: grpc.RpcError) -> ServingError:
    """What a failed call means to its caller: the peer's own error, or WorkerUnavailable if it was not reached."""
    # grpc types RpcError without the methods that every one of its failed calls has.
    assert isinstance(failure, grpc.aio.AioRpcError | grpc.Call), f"{failure!r} is no failed call"
    details = failure.details() or ""
    trailing = {str(key): str(value) for key, value in failure.trailing_metadata() or ()}
    code = trailing.get(ERROR_CODE_KEY)
    if code is not None:
        param = trailing.get(ERROR_PARAM_KEY)
        return error_from_code(code, details, None if param is None else unquote(param))
    status = failure.code()
    if status in _UNREACHABLE:
        return WorkerUnavailable(f"the worker was not reached: {details or status.name}")
    return ServingError(f"the worker failed with {status.name}: {details}")
