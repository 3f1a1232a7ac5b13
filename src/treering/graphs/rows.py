"""The compact form of a framework's own fields in the row of a checkpoint: each channel name once.

A step names its channels again and again: their versions, the versions that each node has seen, which
channels changed, which are empty, which are lists of messages. In the row the names occur once, with the
versions, and everything else refers to them by number: ``[id, rest, parent, v, ts, {channel: version}, {node:
[seen]}, updated, empty, message lists]``. A version that a node has seen is the number of the channel if it
is the current one, and else ``[number, version]``; a name without a version is written out. Rare fields are
in ``rest`` by name (0 if there are none). **Invariant:** `lengthened` reverses `shortened`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

GRAPH: Final = "_graph"
"""The key of the framework's own fields in a checkpoint's metadata."""


class RowStart(msgspec.Struct, array_like=True):
    """The start of a row, for readers of metadata: the id, and the rare fields."""

    id: str
    rest: dict[str, Any] | Literal[0]


_VALUES: Final = "values"
_OWN: Final = frozenset({"id", "parent", "v", "ts", "versions", "seen", "updated", "messages", _VALUES})


def shortened(graph: Mapping[str, Any]) -> list[Any]:
    """Return the fields of a step in their compact form."""
    versions: dict[str, Any] = graph["versions"]
    numbers: dict[str, Any] = dict(zip(versions, range(len(versions)), strict=True))
    seen: dict[str, list[Any]] = {}
    for node, each in graph["seen"].items():
        entries: list[Any] = []
        seen[node] = entries
        for name, version in each.items():
            number, current = numbers.get(name, name), versions.get(name)
            is_current = version == current and type(version) is type(current) and number != name
            entries.append(number if is_current else [number, version])
    rest = {name: graph[name] for name in graph if name not in _OWN}
    empty: list[str] = []
    if _VALUES in graph:
        values: dict[str, Any] = graph[_VALUES]
        empty = [name for name in values if values[name] is None]
        if len(empty) < len(values):
            rest[_VALUES] = {name: value for name, value in values.items() if value is not None}
    updated, messages = graph.get("updated"), graph.get("messages", ())
    number = numbers.get
    return [
        graph["id"],
        rest or 0,
        graph.get("parent"),
        graph["v"],
        graph["ts"],
        versions,
        seen,
        None if updated is None else [*map(number, updated, updated)],
        [*map(number, empty, empty)],
        [*map(number, messages, messages)],
    ]


def lengthened(short: list[Any]) -> dict[str, Any]:
    """Return the fields of a step from their compact form, which must not be used afterwards."""
    graph_id, rest, parent, v, ts, versions, seen, updated, empty, messages = short
    current = list(versions.items())
    names = list(versions)
    for node, each in seen.items():
        seen[node] = dict(
            [current[entry] if type(entry) is int else _earlier(entry, names) for entry in each]
        )
    graph: dict[str, Any] = {"id": graph_id, "v": v, "ts": ts, "versions": versions, "seen": seen}
    if parent is not None:
        graph["parent"] = parent
    if updated is not None:
        graph["updated"] = [names[each] if type(each) is int else each for each in updated]
    if empty:
        graph[_VALUES] = {names[each] if type(each) is int else each: None for each in empty}
    if messages:
        graph["messages"] = [names[each] if type(each) is int else each for each in messages]
    if rest:
        if empty and _VALUES in rest:
            graph[_VALUES] |= rest.pop(_VALUES)
        graph |= rest
    return graph


def _earlier(entry: list[Any], names: list[str]) -> tuple[str, Any]:
    name, version = entry
    return names[name] if type(name) is int else name, version
