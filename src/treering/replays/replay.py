"""Replay: the agent's own code runs again, and its models and tools answer from the recording.

    with treering.replay(store, run_id) as replayed:
        answer = my_agent("the same question")

Calls are matched by their content, never by their order: a call is answered by the first recorded exchange
with the same content that has not answered yet, so parallel calls may come in any order. What differs each
time although it means the same (a timestamp, an id) is declared in a `Tolerance`. Hosts are not compared.

The first call that the recording does not have is the `Divergence`. Then ``otherwise`` decides: stop, make
the call for real, or let a function answer. **Invariant:** with ``otherwise="stop"`` nothing is sent: sockets
are blocked for the whole process, except those of the store and of ``allow``. Programs that the agent starts
are not blocked, nor is code that does not use Python's sockets.

One replay at a time may run in a process, because sockets and clients are the process's.
"""

from __future__ import annotations

import difflib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice, zip_longest
from types import TracebackType
from typing import Any, Final, Literal, Self, cast
from urllib.parse import urlsplit

import msgspec

from treering.adapters.shared import Opened, StoreOrUrl
from treering.core.encoding import encode_json
from treering.errors import Conflict, InvalidInput, NotFound, TreeringError
from treering.replays import capture, nature
from treering.replays.capture import Asked, state
from treering.runs.exchanges import CallError, Exchange, ExchangeKind, read_draws, read_exchanges
from treering.runs.run import RunInfo
from treering.runs.span import RunNode, replaying
from treering.store import Store

Stub = Callable[[Asked], Exchange | None]
"""Answers a call that the recording does not have; ``None``: make it for real."""
Otherwise = Literal["stop", "real"] | Stub

_MASKS: Final = {
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "timestamp": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?",
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\b\d\d:\d\d(:\d\d(\.\d+)?)?\b",
    "number": r"\d+(\.\d+)?",
}
_ADDRESS_IN_REPR: Final = re.compile(r" at 0x[0-9a-f]+")
_DIFF_LINES: Final = 60
_SHOWN: Final = 200
_PATHS: Final = 5
_MISSING: Final = object()


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """What may differ between a call and its recording.

    Args:
        ignore: fields of the body or the arguments, as paths with ``*`` for any key or index:
            ``metadata.user_id``, ``messages.*.id``.
        mask: parts of texts: ``uuid``, ``timestamp``, ``date``, ``time``, ``number``, or a regular
            expression.
    """

    ignore: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()

    def __or__(self, other: Tolerance) -> Tolerance:
        """Return what may differ by either."""
        return Tolerance(
            ignore=tuple(dict.fromkeys((*self.ignore, *other.ignore))),
            mask=tuple(dict.fromkeys((*self.mask, *other.mask))),
        )

    def fingerprint(self, kind: str, name: str, request: Mapping[str, Any]) -> bytes:
        """Return what calls have in common that mean the same."""
        content = self.content(kind, name, request)
        return blake2b(encode_json(content), digest_size=16).digest()

    def content(self, kind: str, name: str, request: Mapping[str, Any]) -> Any:
        """Return what of a call is compared."""
        if kind == "http":
            url = urlsplit(str(request.get("url", "")))
            return {
                "method": request.get("method"),
                "path": self._masked(url.path),
                "query": self._masked(url.query),
                "body": self._normal(request.get("body"), [each.split(".") for each in self.ignore]),
            }
        rest = self._normal(dict(request), [])
        if kind == "tool":
            rest = {
                "arguments": self._normal(request.get("arguments"), [each.split(".") for each in self.ignore])
            }
        return {"kind": kind, "name": name if kind == "tool" else None, **rest}

    def _normal(self, value: Any, ignored: list[list[str]]) -> Any:
        if isinstance(value, Mapping):
            fields = cast("Mapping[str, Any]", value)
            if "_opaque" in fields:
                return {name: _ADDRESS_IN_REPR.sub("", str(each)) for name, each in fields.items()}
            return {
                name: self._normal(each, _below(ignored, name))
                for name, each in fields.items()
                if [name] not in ignored and ["*"] not in ignored
            }
        if isinstance(value, (list, tuple)):
            items = cast("Sequence[Any]", value)
            return [self._normal(each, _below(ignored, str(index))) for index, each in enumerate(items)]
        return self._masked(value) if isinstance(value, str) else value

    def _masked(self, text: str) -> str:
        for each in self.mask:
            text = re.sub(_MASKS.get(each, each), f"<{each}>" if each in _MASKS else "<masked>", text)
        return text


def _below(ignored: list[list[str]], key: str) -> list[list[str]]:
    return [path[1:] for path in ignored if len(path) > 1 and path[0] in (key, "*")]


EXACT: Final = Tolerance()


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first call that the recording does not have."""

    step: int
    """Where the recording says something else; one more than its last step, if it has ended."""
    kind: str
    name: str
    asked: Any
    recorded: Exchange | None
    """What the recording has in its place; ``None`` if nothing is left."""
    diff: tuple[str, ...]
    what: Literal["asked", "answered", "ended"] = "asked"
    """``asked``: for something else; ``answered``: a tool that was called did something else; ``ended``: the
    agent ended, and the recording goes on."""
    where: tuple[str, ...] = ()
    """Where they differ: ``body.messages.0.content``."""

    def describe(self) -> str:
        """Say what was asked, what was recorded, and how they differ."""
        what = f"{self.kind} call {self.name!r}" if self.kind != "http" else f"request {self.name!r}"
        if self.what == "ended":
            return f"step {self.step}: the agent ended, and the recording goes on with the {what}"
        if self.recorded is None:
            return f"step {self.step}: the {what} is not in the recording, of which nothing like it is left"
        if self.what == "answered":
            said = f"step {self.step}: the {what} had another outcome than in the recording"
        elif self.recorded.name == self.name:
            said = f"step {self.step}: the {what} is not what was recorded"
        else:
            said = f"step {self.step}: the {what} is not in the recording, which has {self.recorded.name!r}"
        if self.where:
            said += f"; it differs in {', '.join(self.where)}"
        return "\n".join([said, *self.diff])


class Diverged(TreeringError):
    """An agent asked what its recording does not have. ``divergence`` says what."""

    http_status = 409
    exit_code = 18

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        super().__init__(
            f"{divergence.describe()}\nTo go on, pass otherwise='real' or a function that answers; if the "
            "difference means nothing, declare it with a Tolerance."
        )


class StopReplay(BaseException):
    """Ends an agent that diverged. Not an `Exception`, because SDKs catch and retry those."""


class NetworkBlocked(TreeringError):
    """A replay does not connect to anything; see ``allow``."""


class Recording:
    """The exchanges of a run, each of which answers once."""

    def __init__(self, exchanges: Iterable[Exchange], *, tolerance: Tolerance = EXACT) -> None:
        self.exchanges = list(exchanges)
        self.tolerance = tolerance
        self._unused: dict[bytes, list[Exchange]] = {}
        self._left: dict[int, Exchange] = {}
        for each in self.exchanges:
            self._unused.setdefault(self.fingerprint(each.kind, each.name, each.request), []).append(each)
            self._left[each.step] = each

    def fingerprint(self, kind: str, name: str, request: Mapping[str, Any]) -> bytes:
        """Return what a call is matched by."""
        return self.tolerance.fingerprint(kind, name, request)

    @property
    def left(self) -> list[Exchange]:
        """The exchanges that have not answered, in order."""
        return list(self._left.values())

    def find(self, asked: Asked) -> Exchange | None:
        """Return the first exchange with the content of a call that has not answered yet, or ``None``."""
        unused = self._unused.get(self.fingerprint(asked.kind, asked.name, asked.request))
        return unused[0] if unused else None

    def use(self, exchange: Exchange) -> None:
        """Note that an exchange has answered."""
        key = self.fingerprint(exchange.kind, exchange.name, exchange.request)
        self._unused[key].remove(exchange)
        del self._left[exchange.step]

    def diverge(self, asked: Asked) -> Divergence:
        """Describe a call that is not in the recording, beside the next one that is."""
        same = [each for each in self.left if each.kind == asked.kind]
        recorded = next((each for each in same if each.name == asked.name), same[0] if same else None)
        before = (
            None
            if recorded is None
            else self.tolerance.content(recorded.kind, recorded.name, recorded.request)
        )
        after = self.tolerance.content(asked.kind, asked.name, asked.request)
        return Divergence(
            step=len(self.exchanges) + 1 if recorded is None else recorded.step,
            kind=asked.kind,
            name=asked.name,
            asked=asked.request,
            recorded=recorded,
            diff=() if before is None else tuple(difference_of(before, after)),
            where=() if before is None else tuple(islice(paths_of_difference(before, after), _PATHS)),
        )


def ended_early(missing: Exchange) -> Divergence:
    """Describe that an agent ended without a call that was recorded."""
    return Divergence(
        step=missing.step,
        kind=missing.kind,
        name=missing.name,
        asked=None,
        recorded=missing,
        diff=(),
        what="ended",
    )


def paths_of_difference(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two values differ, the innermost ones."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        old, new = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
        pairs = [(name, old.get(name, _MISSING), new.get(name, _MISSING)) for name in {**old, **new}]
    elif isinstance(before, list) and isinstance(after, list):
        items = zip_longest(cast("list[Any]", before), cast("list[Any]", after), fillvalue=_MISSING)
        pairs = [(str(at), one, other) for at, (one, other) in enumerate(items)]
    else:
        if before != after:
            yield path
        return
    for name, one, other in pairs:
        yield from paths_of_difference(one, other, f"{path}.{name}" if path else name)


def difference_of(before: Any, after: Any, *, names: tuple[str, str] = ("recorded", "asked")) -> list[str]:
    """Return the lines of a diff between two values; long texts are shown where they differ."""
    old, new = map(_shown_lines, (before, after))
    lines: list[str] = []
    matcher = difflib.SequenceMatcher(None, old, new)
    for group in matcher.get_grouped_opcodes(1):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},{last[4] - first[3]} @@")
        for kind, start, stop, other, end in group:
            if kind == "equal":
                lines += [f" {_cut(line, 0)}" for line in old[start:stop]]
                continue
            pairs = list(zip_longest(old[start:stop], new[other:end], fillvalue=""))
            begins = [_common(*pair) for pair in pairs]
            lines += [f"-{_cut(line, at)}" for line, at in zip(old[start:stop], begins, strict=False)]
            lines += [f"+{_cut(line, at)}" for line, at in zip(new[other:end], begins, strict=False)]
    cut = [f"--- {names[0]}", f"+++ {names[1]}", *lines[:_DIFF_LINES]] if lines else []
    return cut + ([f"… {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else [])


def _shown_lines(value: Any) -> list[str]:
    """Return a value as lines of JSON, in which a text has the lines that it has."""
    formatted = msgspec.json.format(encode_json(value), indent=1).decode()
    return formatted.replace("\\n", "\\n\n").splitlines()


def _common(one: str, other: str) -> int:
    """Return how many characters two lines begin with that are the same."""
    least = min(len(one), len(other))
    return next((at for at in range(least) if one[at] != other[at]), least)


def _cut(line: str, at: int) -> str:
    """Return a part of a long line, with what is at a position."""
    if len(line) <= _SHOWN:
        return line
    start = max(0, at - _SHOWN // 4)
    part = line[start : start + _SHOWN]
    return ("…" if start else "") + part + ("…" if start + _SHOWN < len(line) else "")


class Replay:
    """A replay in progress, for a ``with`` or ``async with`` statement.

    The end of the statement raises `Diverged` if the agent was stopped, or (with ``complete``) if it did not
    ask for everything that was recorded.
    """

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        *,
        run: RunInfo | None = None,
        tolerance: Tolerance = EXACT,
        otherwise: Otherwise = "stop",
        tools: bool = True,
        allow: Sequence[str] = (),
        complete: bool = False,
        draws: Mapping[str, list[Any]] | None = None,
    ) -> None:
        if isinstance(otherwise, str) and otherwise not in ("stop", "real"):
            raise InvalidInput(f"otherwise={otherwise!r} is invalid; use 'stop', 'real' or a function")
        self.run = run
        self.recording = Recording(exchanges, tolerance=tolerance)
        self.divergence: Divergence | None = None
        """The first call that the recording does not have, if there was one."""
        self.answered: list[Exchange] = []
        """The exchanges that have answered, in the order in which they were asked for."""
        self.node: RunNode | None = None
        self._otherwise = otherwise
        self._tools = tools
        self._allow = tuple(allow)
        self._complete = complete
        self._draws = draws
        self._undo: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def exchanges(self) -> list[Exchange]:
        """Everything that was recorded."""
        return self.recording.exchanges

    @property
    def left(self) -> list[Exchange]:
        """What was recorded and has not been asked for."""
        return [each for each in self.recording.left if self._tools or each.kind != "tool"]

    # The session, for `treering.replays.capture`
    def answer(self, asked: Asked) -> Exchange | None:
        """Return the recorded exchange; ``None`` if the call is to be made."""
        if asked.kind == "tool" and not self._tools:
            return None
        with self._lock:
            found = self.recording.find(asked)
            if found is not None:
                self.recording.use(found)
                self.answered.append(found)
                return found
            if self.divergence is None:
                self.divergence = self.recording.diverge(asked)
        if self._otherwise == "stop":
            raise StopReplay
        replaying.now = False
        return None if isinstance(self._otherwise, str) else self._otherwise(asked)

    def model(self, function: Callable[..., Any], messages: Any) -> tuple[Callable[..., Any], Any]:
        """Return the function that is asked for a call that is made, and what it is given."""
        return function, messages

    def knows(self, kind: ExchangeKind) -> bool:
        """Whether the recording has exchanges of this kind."""
        return any(each.kind == kind for each in self.recording.exchanges)

    def returned(self, asked: Asked, answer: Any, error: CallError | None) -> None:
        """Take note of what a tool did that was called."""

    def check_allowed(self, host: str, port: int | None) -> None:
        """Raise `NetworkBlocked` if nothing may be sent to a host."""
        blocked_sockets.check(host, port)

    def start(self) -> None:
        """Answer calls from now on; ``with`` does this."""
        with state.lock:
            if state.session is not None:
                raise Conflict("another replay is running in this process; end it first")
            state.session = self
            capture.install()
        replaying.now = True
        if self._draws is not None:
            nature.begin(nature.Nature(self._draws), self._undo)
        if self._otherwise == "stop":
            blocked_sockets.block(self._allow)

    def stop(self) -> None:
        """Answer no more; ``with`` does this. May be called twice."""
        with state.lock:
            if state.session is self:
                while self._undo:
                    self._undo.pop()()
                blocked_sockets.unblock()
                replaying.now = False
                state.session = None
                capture.uninstall()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._raise(error)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._raise(error)

    def _raise(self, error: BaseException | None) -> None:
        """Raise `Diverged` for an agent that was stopped, or that left something out."""
        if self.divergence is not None and self._otherwise == "stop":
            raise Diverged(self.divergence) from (error if isinstance(error, Exception) else None)
        if error is None and self._complete and self.left:
            self.divergence = ended_early(self.left[0])
            raise Diverged(self.divergence)


class _BlockedSockets:
    """While a replay runs, no Python socket of this process connects, except to where it may.

    Python's audit events see every socket, however it was made. A hook can never be removed, so one is added
    for the first replay of the process, and looks whether there is one now.
    """

    def __init__(self) -> None:
        self.allow: frozenset[str] | None = None
        """Hosts, and hosts with ports, that may be connected to; ``None``: everything."""
        self._is_added = False

    def block(self, allow: Iterable[str]) -> None:
        """Block from now on."""
        self.allow = frozenset(allow)
        if not self._is_added:
            self._is_added = True
            sys.addaudithook(self._on_event)

    def unblock(self) -> None:
        """Allow everything again."""
        self.allow = None

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.allow is None or not event.startswith("socket."):
            return
        if event == "socket.getaddrinfo":
            self.check(arguments[0], arguments[1])
        elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            address: Any = arguments[1]
            if isinstance(address, tuple):  # a path is a socket of this machine
                self.check(*cast("tuple[Any, ...]", address)[:2])

    def check(self, host: Any, port: Any) -> None:
        """Raise `NetworkBlocked` if nothing may connect to a host."""
        name = host.decode() if isinstance(host, bytes) else str(host)
        allow = self.allow
        if host is None or allow is None or name in allow or f"{name}:{port}" in allow:
            return
        raise NetworkBlocked(
            f"a replay does not connect to {name}:{port}, which was not recorded; "
            f"pass allow=[{f'{name}:{port}'!r}] if it may"
        )


blocked_sockets: Final = _BlockedSockets()


def replay(
    store_or_url: StoreOrUrl | None,
    run: str | RunInfo,
    *,
    tolerance: Tolerance = EXACT,
    otherwise: Otherwise = "stop",
    tools: bool = True,
    allow: Sequence[str] = (),
    complete: bool = False,
    draws: bool = True,
) -> Replay:
    """Replay a recorded run: ``with treering.replay(store, run_id) as replayed: my_agent(question)``.

    Args:
        tolerance: what may differ between a call and its recording.
        otherwise: what to do with a call that was not recorded: ``"stop"`` the agent and raise `Diverged`,
            make it for ``"real"``, or a function that answers.
        tools: answer tool calls too; else they are made for real.
        allow: what may be connected to nevertheless, as ``host`` or ``host:port``.
        complete: also raise `Diverged` if the agent ends without having asked for everything.
        draws: give the agent's own code the times, random numbers and ids of the recording, if it has them.

    Raises:
        NotFound: There is no such run, or nothing of it was recorded with `instrument` or `record`.
    """
    opened = Opened(store_or_url)
    try:
        store = opened.store
        store.flush()
        info = store.runs.load(run) if isinstance(run, str) else run
        exchanges = load_exchanges(store, info.id)
        return Replay(
            exchanges,
            run=info,
            tolerance=tolerance,
            otherwise=otherwise,
            tools=tools,
            allow=(*allow, *hosts_of(store)),
            complete=complete,
            draws=load_draws(store, exchanges, info.id) if draws else None,
        )
    finally:
        opened.close()


def hosts_of(store: Store) -> tuple[str, ...]:
    """Return the hosts that a store connects to, which a replay may do as well."""
    host = urlsplit(store.url).netloc.rpartition("@")[2]
    return (host, host.partition(":")[0]) if host else ()


def load_draws(store: Store, exchanges: Sequence[Exchange], run_id: str) -> dict[str, list[Any]]:
    """Return what the clock, randomness and ids gave during a run."""
    rest = read_draws(store.engine, store.space, run_id)
    return nature.merge_draws([*(each.draws for each in exchanges), *rest])


def load_exchanges(store: Store, run_id: str) -> list[Exchange]:
    """Return the exchanges of a run; raise `NotFound` if none were recorded."""
    exchanges = read_exchanges(store.engine, store.space, run_id)
    if not exchanges:
        imported = store.runs.load(run_id).meta.get("replay")
        if imported:
            missing = "; ".join(imported["missing"]) or "it has no calls of models"
            raise NotFound(f"run {run_id!r} was imported without what a replay needs: {missing}")
        raise NotFound(
            f"run {run_id!r} has no recorded calls; record it with treering.record() or treering.instrument()"
        )
    return exchanges
