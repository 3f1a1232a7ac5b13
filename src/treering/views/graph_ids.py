"""How a graph's steps are named: ids that are computed, not looked up.

A UUID of version 6 or 7 says when it was made. Together with a hash of the place that the step belongs to
it gives the checkpoint's id, which says where in the journal the row lies. Ids of one place sort as the
framework's own do.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from treering.core.ids import MAX_ID_CHARS
from treering.core.scopes import namespace_prefix
from treering.views.checkpoints import PREFIX
from treering.views.journal import head_ref, thread_scope

_HEADS: Final = "graph/"
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_UUID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_GREGORIAN_US: Final = 12_219_292_800_000_000
_LAST_MS: Final = (1 << 47) - 1


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the steps of one graph go: a thread, and a namespace within it."""

    thread: str
    namespace: str
    within: str
    scope: str
    ref: str


def placed(thread: str, namespace: str, within: str) -> Place:
    """Where the steps of a graph go."""
    ref = head_ref(thread, namespace)
    if within:
        ref = subgraph_refs(thread, namespace) + within
        if len(ref) > MAX_ID_CHARS or not ref.isprintable():
            digest = blake2b(f"{thread}\0{within}".encode("utf-8", "surrogatepass"), digest_size=32)
            ref = f"{_HEADS}{namespace_prefix(namespace)}~{digest.hexdigest()}"
    scope = thread_scope(thread, namespace)
    return Place(thread=thread, namespace=namespace, within=within, scope=scope, ref=ref)


def subgraph_refs(thread: str, namespace: str) -> str:
    """What the names of the heads of a thread's subgraphs begin with, but for those that are too long."""
    return f"{_HEADS}{namespace_prefix(namespace)}{namespace_prefix(thread)}"


def step_id(place: Place, graph_id: str) -> tuple[str, int] | None:
    """The id of the checkpoint for a step, and its time in microseconds; ``None`` for an id that has no time.

    Ids of one namespace sort as the framework's own do.
    """
    return _made_id(place.namespace, place.thread, place.within, graph_id)


@lru_cache(maxsize=4096)
def _made_id(namespace: str, thread: str, within: str, graph_id: str) -> tuple[str, int] | None:
    ticks = _ticks(graph_id)
    if ticks is None:
        return None
    ms, rest = divmod(ticks, 10_000)
    digest = blake2b(_name(namespace, thread, within, graph_id), digest_size=8).digest()
    # 130 bits in 13 pairs of characters: 48 of time and 16 of the rest are above the 64 of the digest.
    low = int.from_bytes(digest, "big")
    high = ms << 16 | rest
    return (
        f"{PREFIX}{_PAIRS[high >> 56]}{_PAIRS[high >> 46 & 1023]}{_PAIRS[high >> 36 & 1023]}"
        f"{_PAIRS[high >> 26 & 1023]}{_PAIRS[high >> 16 & 1023]}{_PAIRS[high >> 6 & 1023]}"
        f"{_PAIRS[(high << 4 & 1023) | low >> 60]}{_PAIRS[low >> 50 & 1023]}{_PAIRS[low >> 40 & 1023]}"
        f"{_PAIRS[low >> 30 & 1023]}{_PAIRS[low >> 20 & 1023]}{_PAIRS[low >> 10 & 1023]}{_PAIRS[low & 1023]}"
    ), ticks // 10


def copied_id(place: Place, checkpoint_id: str) -> str:
    """The id of a copy of a checkpoint in another place; it sorts as the checkpoint's own does."""
    digest = blake2b(
        _name(place.namespace, place.thread, place.within, checkpoint_id), digest_size=5
    ).digest()
    number = int.from_bytes(digest, "big")
    return checkpoint_id[:-8] + "".join([_PAIRS[number >> shift & 1023] for shift in range(30, -1, -10)])


def writes_key(place: Place, graph_id: str) -> str:
    """What the writes of a step have in common, in the journal's indexed column."""
    name = _name(place.namespace, place.thread, place.within, graph_id)
    return "writes:" + blake2b(name, digest_size=12).hexdigest()


def _name(*parts: str) -> bytes:
    return "\0".join(parts).encode("utf-8", "surrogatepass")


def _ticks(graph_id: str) -> int | None:
    """When a UUID of version 6 or 7 was made, in tenths of a microsecond since 1970."""
    if _UUID.fullmatch(graph_id) is None:
        return None
    time, version = int(graph_id[:8] + graph_id[9:13] + graph_id[15:18], 16), graph_id[14]
    if version == "6":
        ticks = time - _GREGORIAN_US * 10
    elif version == "7":
        ticks = (time >> 12) * 10_000 + (time & 0xFFF)
    else:
        return None
    return ticks if 0 <= ticks // 10_000 <= _LAST_MS else None
