"""OTLP over gRPC: the three ``Export`` services that exporters call, at a port of their own.

A request goes the same way as over HTTP (`treering.server.routes.otlp`): authenticated by its metadata
(``authorization: Bearer <key>``), answered once it is durable. What is safe to retry is ``UNAVAILABLE``,
which exporters send again; what will never be accepted is ``INVALID_ARGUMENT``.
"""

from __future__ import annotations

import logging
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import HTTPConnection

from treering.errors import Forbidden, InvalidInput, MissingExtra, TreeringError, Unauthorized, Unreachable
from treering.server.permissions import scope_of
from treering.server.routes.otlp import success

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from treering.runs.otlp.decode import Signal
    from treering.server.endpoints import ServerState

_log: Final = logging.getLogger("treering.server")
_SERVICES: Final[dict[str, Signal]] = {
    "opentelemetry.proto.collector.trace.v1.TraceService": "traces",
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
    "opentelemetry.proto.collector.metrics.v1.MetricsService": "metrics",
}
_THREADS: Final = 32
"""A request holds a thread until it is durable; those that wait share a commit."""
_GRACE_SECONDS: Final = 5


@contextmanager
def serving_grpc(state: ServerState, port: int) -> Generator[int]:
    """Serve OTLP over gRPC on a port (0 picks a free one), which is yielded, then finish what is running."""
    try:
        import grpc
    except ModuleNotFoundError as error:
        raise MissingExtra("OTLP over gRPC", "grpc") from error
    service: Any = grpc
    server = service.server(
        ThreadPoolExecutor(_THREADS, thread_name_prefix="treering-grpc"),
        options=[("grpc.max_receive_message_length", state.settings.max_body), ("grpc.so_reuseport", 0)],
    )
    for name, signal in _SERVICES.items():
        # Without serializers, messages are bytes: they are decoded where those of HTTP are.
        method = service.unary_unary_rpc_method_handler(_export(service, state, signal))
        server.add_generic_rpc_handlers((service.method_handlers_generic_handler(name, {"Export": method}),))
    host = f"[{state.settings.host}]" if ":" in state.settings.host else state.settings.host
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise Unreachable(f"cannot listen on {host}:{port} for gRPC ({error}); choose another port") from None
    server.start()
    try:
        yield bound
    finally:
        server.stop(_GRACE_SECONDS).wait()


def _export(grpc: Any, state: ServerState, signal: Signal) -> Callable[[bytes, Any], bytes]:
    def export(data: bytes, context: Any) -> bytes:
        began = time.monotonic()
        status = 200
        try:
            access = state.gate.admit(_connection(context))
            access.check(scope_of("otlp", changes=True), to="write telemetry")
            store = state.projects.store(access.project)
            result = store.otlp.submit(data, signal=signal, encoding="protobuf").result()
        except TreeringError as error:
            status = error.http_status
            code, message = _code(grpc, error), str(error)
        except Exception as error:  # noqa: BLE001 - the sender gets a reference, the log the error
            reference, status = secrets.token_hex(4), 500
            _log.error("OTLP over gRPC failed [%s]", reference, exc_info=error)
            code, message = grpc.StatusCode.INTERNAL, f"see the server log for {reference}"
        else:
            return success(result, signal, "protobuf")
        finally:
            state.metrics.count("GRPC", f"/v1/{signal}", status, time.monotonic() - began)
        context.abort(code, message)
        raise AssertionError  # abort has raised

    return export


def _connection(context: Any) -> HTTPConnection:
    """Return the call as the gate sees a request.

    Its host is not checked: no browser can be made to send gRPC, so no page of another site calls this.
    """
    headers = [(b"host", b"localhost")]
    headers += [
        (name.encode(), value.encode())
        for name, value in context.invocation_metadata()
        if name in {"authorization", "x-api-key"} and isinstance(value, str)
    ]
    return HTTPConnection({"type": "http", "headers": headers})


def _code(grpc: Any, error: TreeringError) -> Any:
    codes = grpc.StatusCode
    if error.retryable:
        return codes.UNAVAILABLE
    if isinstance(error, Unauthorized):
        return codes.UNAUTHENTICATED
    if isinstance(error, Forbidden):
        return codes.PERMISSION_DENIED
    return codes.INVALID_ARGUMENT if isinstance(error, InvalidInput) else codes.FAILED_PRECONDITION
