"""Changes of resources, for clients that subscribe to them: documents and conversations, whoever writes them.

A bus of the SDK tells its listeners what changed. `JournalBus` takes that from the journal, so a client hears
of what any process commits. While somebody listens, one thread follows the journal; it hands each event over
to the event loop that the listener belongs to. **Invariant:** what is committed after a subscription was
acknowledged is told.

Clients of protocols before 2026-07-28 subscribe to one resource at a time; `serve_older_clients` adds that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourcesListChanged, ResourceUpdated
from mcp_types import EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from treering.core.ids import MAINTENANCE_SCOPE, parse_scope
from treering.core.query import EventQuery, each_record
from treering.errors import Closed, InvalidInput, TreeringError
from treering.threads.history import LEDGER

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server
    from mcp.server.session import ServerSession
    from mcp.server.subscriptions import ServerEvent

    from treering.core.engine import Engine

_SCHEMES: Final = {"thread": "thread", "memory": "memory"}
_REMOVALS: Final = frozenset({MAINTENANCE_SCOPE, LEDGER})
"""Where the journal notes what was erased."""
_SLICE_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 1.0
_HELD: Final = "treering.subscriptions"

Listener = Callable[["ServerEvent"], None]


class JournalBus(InMemorySubscriptionBus):
    """Tells listeners which resources changed in one space of an engine."""

    def __init__(self, engine: Engine, space: str) -> None:
        super().__init__()
        self._engine = engine
        self._space = space
        self._lock = threading.Lock()
        self._tokens: dict[object, tuple[Listener, EventLoopToken]] = {}
        self._thread: threading.Thread | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Register a listener, which is called on the loop that this is called on."""
        stop_local = super().subscribe(listener)  # what the server itself publishes
        key = object()
        with self._lock:
            self._tokens[key] = (listener, current_token())
            if self._thread is None:
                newest = self._engine.wait(self._space, 0, seconds=0)
                self._thread = threading.Thread(
                    target=self._follow, args=(newest,), name="treering-mcp-changes", daemon=True
                )
                self._thread.start()

        def unsubscribe() -> None:
            stop_local()
            with self._lock:
                self._tokens.pop(key, None)

        return unsubscribe

    def _follow(self, seen: int) -> None:
        """Run the thread: it ends when nobody listens any more."""
        pause = threading.Event()
        while True:
            with self._lock:
                if not self._tokens:
                    self._thread = None
                    return
            try:
                newest = self._engine.wait(self._space, seen, seconds=_SLICE_SECONDS)
                if newest > seen:
                    self._tell(self._events(seen, newest))
                    seen = newest
            except Closed:
                with self._lock:
                    self._tokens.clear()
            except TreeringError:  # a server that is away for a while; nothing is lost by reading later
                pause.wait(_RETRY_SECONDS)

    def _events(self, after: int, until: int) -> list[ServerEvent]:
        """Return what changed behind a sequence number, each thing once."""
        changed: dict[ServerEvent, None] = {}
        for record in each_record(self._engine, self._space, EventQuery(), after=str(after)):
            if record.seq > until:
                break
            if record.event.scope in _REMOVALS:
                changed[ResourcesListChanged()] = None
                continue
            for uri in uris_of(record.event.scope):
                changed[ResourceUpdated(uri)] = None
                changed[ResourcesListChanged()] = None  # its entry has a description of its content
        return list(changed)

    def _tell(self, events: Iterable[ServerEvent]) -> None:
        with self._lock:
            listeners = list(self._tokens.items())
        for key, (listener, token) in listeners:
            try:
                for event in events:
                    from_thread.run_sync(listener, event, token=token)
            except RuntimeError:  # its loop has ended
                with self._lock:
                    self._tokens.pop(key, None)


def uris_of(scope: str) -> list[str]:
    """Return the addresses of the resource with this scope: as it is listed, and with every slash escaped."""
    try:
        parsed = parse_scope(scope)
    except InvalidInput:
        return []
    scheme = _SCHEMES.get(parsed.kind)
    if scheme is None:
        return []
    whose = f"?namespace={quote(parsed.namespace, safe='')}" if parsed.namespace else ""
    names = dict.fromkeys((quote(parsed.id), quote(parsed.id, safe="")))
    return [f"{scheme}://{name}{whose}" for name in names]


def serve_older_clients(server: Server[Any], bus: JournalBus) -> None:
    """Add ``resources/subscribe`` and ``resources/unsubscribe``."""

    async def subscribe(ctx: ServerRequestContext[Any], params: SubscribeRequestParams) -> EmptyResult:
        connection = _connection(ctx)
        held: dict[str, Callable[[], None]] = connection.state.setdefault(_HELD, {})
        if params.uri not in held:
            held[params.uri] = bus.subscribe(_Updates(params.uri, ctx.session).on_event)
            connection.exit_stack.callback(held[params.uri])
        return EmptyResult()

    async def unsubscribe(ctx: ServerRequestContext[Any], params: UnsubscribeRequestParams) -> EmptyResult:
        stop = _connection(ctx).state.get(_HELD, {}).pop(params.uri, None)
        if stop is not None:
            stop()
        return EmptyResult()

    server.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)


def _connection(ctx: ServerRequestContext[Any]) -> Connection:
    """Return the connection of a request; the SDK has no public name for it."""
    return ctx.session._connection  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


class _Updates:
    """Sends the updates of one resource to one client: one at a time, however fast it changes."""

    def __init__(self, uri: str, session: ServerSession) -> None:
        self._uri = uri
        self._session = session
        self._is_due = False
        self._task: asyncio.Task[None] | None = None

    def on_event(self, event: ServerEvent) -> None:
        """Note a change, and send it unless the one before is still being sent."""
        if isinstance(event, ResourceUpdated) and event.uri == self._uri:
            self._is_due = True
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._is_due:
            self._is_due = False
            await self._session.send_resource_updated(self._uri)
