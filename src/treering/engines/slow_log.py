"""The slow-query log: an engine around an engine that logs which calls took long.

A line says which call it was and how long it took: which filters were set and how many names were given,
never their values. So the log may be stored where the data may not. The logger is ``treering.slow``.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.batch import Batch
    from treering.core.engine import Engine

log: Final = logging.getLogger("treering.slow")


def log_slow_queries(engine: Engine, threshold_ms: float) -> Engine:
    """Return the same engine; calls that take at least this long are logged as warnings."""
    return cast("Engine", _SlowLogged(engine, threshold_ms / 1000))


class _SlowLogged:
    """Forwards everything. Methods are wrapped on first use."""

    def __init__(self, engine: Engine, threshold: float) -> None:
        self._engine = engine
        self._threshold = threshold

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        shape = _SHAPES.get(name)
        if shape is None:
            return found
        timed = self._timed(name, found, shape)
        self.__dict__[name] = timed
        return timed

    def _timed(self, name: str, method: Callable[..., Any], shape: Callable[..., str]) -> Callable[..., Any]:
        threshold, clock = self._threshold, time.perf_counter

        def timed(*arguments: Any, **options: Any) -> Any:
            start = clock()
            try:
                return method(*arguments, **options)
            finally:
                took = clock() - start
                if took >= threshold:
                    log.warning("%.0f ms: %s %s", took * 1000, name, shape(*arguments, **options))

        return timed


def _batch(batch: Batch) -> str:
    counted = {
        "events": len(batch.events),
        "refs": len(batch.refs),
        "lists": len(batch.lists),
        "objects": len(batch.objects),
        "texts": len(batch.texts),
    }
    return " ".join(f"{name}={count}" for name, count in counted.items() if count)


def _query(_space: str, query: msgspec.Struct, **options: Any) -> str:
    """Describe which fields of a query are set; only values from a fixed set are shown."""
    parts: list[str] = []
    for field in msgspec.structs.fields(query):
        value = getattr(query, field.name)
        if value != field.default:
            shown = value if field.name in _SHOWN else f"{len(value)} given" if field.name == "ids" else "?"
            parts.append(f"{field.name}={_plain(shown)}")
    parts += [f"{name}={value}" for name, value in options.items() if name == "limit"]
    if options.get("after") is not None:
        parts.append("after=?")
    return " ".join(parts)


def _plain(value: Any) -> str:
    return ",".join(map(str, cast("Any", value))) if isinstance(value, tuple) else str(value)


def _many(_space: str, names: Any, **_: Any) -> str:
    return f"{len(names)} asked for"


def _prefix(_space: str, prefix: str, **options: Any) -> str:
    """Show only what precedes the first slash; after it come ids."""
    return f"prefix={prefix.partition('/')[0]}/... limit={options.get('limit', 1000)}"


def _one(_space: str, *_: Any, **__: Any) -> str:
    return "of one list"


_SHOWN: Final = frozenset("kinds order newest_first oldest_first grain by top limit collection list".split())

_SHAPES: Final[dict[str, Callable[..., str]]] = {
    "commit": _batch,
    "get": _many,
    "missing": _many,
    "refs": _many,
    "list_refs": _query,
    "scan": _query,
    "sums": _query,
    "search": _query,
    "scan_refs": _prefix,
    "scan_scopes": _prefix,
    "list_info": _one,
    "lineage": _one,
    "read_list": _one,
}
