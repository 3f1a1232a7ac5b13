"""What a framework's own fields of a step look like in the row of its checkpoint: every name once.

A step names its channels again and again: their versions, which version each node has seen, which of them
changed, which hold nothing, which are lists of messages. In the row the names stand once, with the versions,
and everything else counts them: ``[id, rest, parent, v, ts, {channel: version}, {node: [seen]}, updated,
empty, message lists]``. A node that has seen the version that a channel has says the number of the channel,
one that has seen another says ``[number, version]``; a name that has no version stands for itself. What few
steps have is in the ``rest``, by its name (0 if there is nothing). **Invariant:** `lengthened` gives back
what `shortened` was given. Older rows have the long form in their metadata, and both read the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

GRAPH: Final = "_graph"
"""The key in a checkpoint's metadata under which the framework's own fields are."""


class Named(msgspec.Struct, array_like=True):
    """The beginning of a row, for those who want no more: the id, and what few steps have."""

    id: str
    rest: dict[str, Any] | Literal[0]


_VALUES: Final = "values"
_OWN: Final = frozenset({"id", "parent", "v", "ts", "versions", "seen", "updated", "messages", _VALUES})


def shortened(graph: Mapping[str, Any]) -> list[Any]:
    """The fields of a step as they lie in its row."""
    versions: dict[str, Any] = graph["versions"]
    numbers: dict[str, Any] = dict(zip(versions, range(len(versions)), strict=True))
    seen: dict[str, list[Any]] = {}
    for node, each in graph["seen"].items():
        told: list[Any] = []
        seen[node] = told
        for name, version in each.items():
            number, current = numbers.get(name, name), versions.get(name)
            is_current = version == current and type(version) is type(current) and number != name
            told.append(number if is_current else [number, version])
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
    """The fields of a step out of its row, which is taken over."""
    graph_id, rest, parent, v, ts, versions, seen, updated, empty, messages = short
    current = list(versions.items())
    names = list(versions)
    for node, each in seen.items():
        seen[node] = dict([current[told] if type(told) is int else _earlier(told, names) for told in each])
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


def _earlier(told: list[Any], names: list[str]) -> tuple[str, Any]:
    name, version = told
    return names[name] if type(name) is int else name, version
