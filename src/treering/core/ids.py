"""Ids: the ones treering makes, and what it accepts of the ones it is given.

A made id is 26 characters of lowercase Crockford base32: 48 bits of milliseconds, then 80 bits that start
at random and count up by one while the millisecond lasts. Its text order is therefore its time order, and
two sources (threads share one, processes do not) meet only if they draw the same 79 random bits in the
same millisecond. **Invariant:** one source never gives an id that is not greater than the one before, not
under threads, not when the clock steps back; and a forked child draws afresh, so it repeats nothing.

A given id (a thread, a ref, a list, a batch) is any readable text up to 512 characters. Where one has to
become a file name, `file_name` is injective: ordinary ids stand for themselves, and every other id gets a
``~``, which no ordinary id contains, and 128 bits of its SHA-256.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from threading import Lock
from typing import Final
from weakref import WeakSet

import msgspec

from treering.core.clock import Clock, SystemClock
from treering.errors import InvalidInput

MAX_ID_CHARS: Final = 512
MAX_SPACE_CHARS: Final = 120

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_DIGITS: Final = {digit: value for value, digit in enumerate(_ALPHABET)}
_MADE_ID: Final = re.compile(f"[0-7][{_ALPHABET}]{{25}}")

# The top bit starts clear: counting up from any draw can never overflow 80 bits.
_RANDOM_BITS: Final = (1 << 79) - 1
_LOW_BITS: Final = (1 << 20) - 1
_DRAWN: Final = 640
"""Random bytes that are asked for at once: asking lets other threads go first, each time."""

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ordinary: Final = re.compile(f"[!-~][ -~]{{0,{MAX_ID_CHARS - 1}}}").fullmatch
_SPACE: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9_.-]{{0,{MAX_SPACE_CHARS - 1}}}")
_WINDOWS_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_NOT_SLUG: Final = re.compile(r"[^A-Za-z0-9_-]+")


class IdSource:
    """Strictly increasing ids, from any number of threads, across forks."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._now_us = clock.now_us
        self._random_bytes = random_bytes
        self._lock = Lock()
        self._drawn = b""
        self._draw(ms=0)
        _sources.add(self)

    def next(self) -> str:
        """A new id, greater than every id that this source gave before."""
        return self.next_with_time()[0]

    def next_with_time(self) -> tuple[str, int]:
        """The same, and its time as `time_of` tells it."""
        with self._lock:
            now_ms = self._now_us() // 1000
            if now_ms > self._ms:
                self._draw(ms=now_ms)
            elif self._low == _LOW_BITS:
                self._count_from(self._high + 1, 0)
            else:
                self._low += 1
            low = self._low
            return self._head + _PAIRS[low >> 10] + _PAIRS[low & 1023], self._ms * 1000

    def _draw(self, *, ms: int) -> None:
        self._ms = ms
        if not self._drawn:
            self._drawn = self._random_bytes(_DRAWN)
        drawn = int.from_bytes(self._drawn[-10:], "big") & _RANDOM_BITS
        self._drawn = self._drawn[:-10]
        self._count_from(drawn >> 20, drawn & _LOW_BITS)

    def _count_from(self, high: int, low: int) -> None:
        self._high, self._low = high, low
        # All but the last four characters stay the same for a millisecond, so they are spelled once.
        ms = self._ms
        self._head = (
            f"{_PAIRS[ms >> 40]}{_PAIRS[ms >> 30 & 1023]}{_PAIRS[ms >> 20 & 1023]}{_PAIRS[ms >> 10 & 1023]}"
            f"{_PAIRS[ms & 1023]}{_PAIRS[high >> 50]}{_PAIRS[high >> 40 & 1023]}{_PAIRS[high >> 30 & 1023]}"
            f"{_PAIRS[high >> 20 & 1023]}{_PAIRS[high >> 10 & 1023]}{_PAIRS[high & 1023]}"
        )

    def _after_fork(self) -> None:
        # Another thread may have held the lock at the moment of the fork, so the child needs its own.
        # The next millisecond, drawn afresh: greater than all that was inherited, unlike the parent's.
        self._lock = Lock()
        self._drawn = b""
        self._draw(ms=self._ms + 1)


def new_id() -> str:
    """A new id from the source that the whole process shares."""
    return _shared.next_with_time()[0]


def new_id_with_time() -> tuple[str, int]:
    """The same, and its time as `time_of` tells it."""
    return _shared.next_with_time()


def time_of(made_id: str) -> int:
    """When a made id was made, in microseconds (exact to the millisecond)."""
    if _MADE_ID.fullmatch(made_id) is None:
        raise InvalidInput(f"{_shown(made_id)} is not an id that treering made: 26 characters of {_ALPHABET}")
    ms = 0
    for digit in made_id[:10]:
        ms = ms << 5 | _DIGITS[digit]
    return ms * 1000


def check_id(text: str, what: str) -> str:
    """Return ``text`` if it can be an id; ``what`` names it in the error ('thread id')."""
    # One pass of C code settles the ordinary case; everything but ASCII gets the closer look.
    if type(text) is str and _ordinary(text):
        return text
    return _check_closely(text, what)


def check_space(text: str) -> str:
    """Return ``text`` if it can name a space (a tenant)."""
    if type(text) is str and _SPACE.fullmatch(text) is not None:
        return text
    raise InvalidInput(
        f"space {_shown(text)} is not acceptable; use 1 to {MAX_SPACE_CHARS} of A-Z a-z 0-9 _ . - "
        "and do not begin with a dot"
    )


def file_name(any_id: str) -> str:
    """A file name of at most 200 bytes for this id alone, on any file system that tells case apart."""
    if (
        _SPACE.fullmatch(any_id) is not None
        and any_id[-1] != "."
        and _WINDOWS_DEVICE.fullmatch(any_id) is None
    ):
        return any_id
    slug = _NOT_SLUG.sub("-", any_id)[:MAX_SPACE_CHARS].strip("-") or "id"
    digest = sha256(any_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{slug}~{digest[:32]}"


def _check_closely(text: object, what: str) -> str:
    if not isinstance(text, str):
        problem = f"is of type {type(text).__name__}; pass a str"
    elif not text:
        problem = "is empty; give it at least one character"
    elif len(text) > MAX_ID_CHARS:
        problem = f"has {len(text)} characters, the limit is {MAX_ID_CHARS}; shorten it or use a hash of it"
    elif text.isspace():
        problem = "is only white space; give it a visible character"
    elif found := _FORBIDDEN.search(text):
        kind = "a lone surrogate" if "\ud800" <= found[0] <= "\udfff" else "a control character"
        problem = f"contains {kind} (U+{ord(found[0]):04X} at position {found.start()}); remove it"
    else:
        return str.__str__(text)  # a plain str also where a subclass came in
    raise InvalidInput(f"{what} {_shown(text)} {problem}")


def _shown(text: object) -> str:
    return f"{text[:40]!a}..." if isinstance(text, str) and text[40:] else f"{text!a:.60}"


def _after_fork() -> None:
    for source in _sources:
        source._after_fork()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


_sources: WeakSet[IdSource] = WeakSet()
_shared: Final = IdSource(SystemClock())
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


# -----------------------------------------------------------------------------------------------------------
# Erasure scopes: what can be forgotten together.
#
# A scope is the unit of `forget`: one thread, one run, one memory. Its text is
# ``<namespace>/<kind>/<id>`` with ``/`` and ``%`` percent-escaped inside each part, so that it parses back to
# exactly one triple, and everything of one namespace (a user, a project) is one prefix.


RUN_MOVED: Final = "run.moved"
"""The kind of an event in a thread's scope which says that a run of the thread began in a scope of its own,
because its thread was not known yet. Forgetting the thread takes that scope along."""
_THREAD: Final = "thread"


class Scope(msgspec.Struct, frozen=True):
    """A namespace (``""`` for none), a kind of thing (``thread``, ``run``, ...) and its id."""

    namespace: str
    kind: str
    id: str

    def __str__(self) -> str:
        return f"{_quote(self.namespace)}/{_quote(self.kind)}/{_quote(self.id)}"


def parse_scope(text: str) -> Scope:
    """Read a scope's text."""
    parts = text.split("/")
    if len(parts) != 3:  # noqa: PLR2004 - namespace, kind, id
        raise InvalidInput(f"not a scope: {text[:80]!r}; expected <namespace>/<kind>/<id>")
    return Scope(*map(_unquote, parts))


@lru_cache(maxsize=4096)
def thread_scope_of(thread: str) -> str | None:
    """The scope of a thread that events name so (``<namespace>/<id>``, the namespace escaped)."""
    namespace, separator, name = thread.partition("/")
    return f"{namespace}/{_THREAD}/{_quote(name)}" if separator else None


def thread_of_scope(scope: str) -> str | None:
    """What the events of a thread's scope name the thread; ``None`` for a scope of another kind.

    The inverse of `thread_scope_of`.
    """
    namespace, _, rest = scope.partition("/")
    kind, _, name = rest.partition("/")
    return f"{namespace}/{_unquote(name)}" if kind == _THREAD else None


def namespace_prefix(namespace: str) -> str:
    """What the text of every scope in a namespace starts with."""
    return _quote(namespace) + "/"


def _quote(part: str) -> str:
    if "%" in part or "/" in part:
        return part.replace("%", "%25").replace("/", "%2F")
    return part


def _unquote(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")
