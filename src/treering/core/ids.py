"""Ids and scopes: how treering makes ids, which ones it accepts, and how scopes are written.

A generated id is 26 characters of lowercase Crockford base32: 48 bits of milliseconds, a counter of 20 bits
that starts at random and counts up by one within a millisecond, and 60 random bits that are drawn once per
millisecond. Text order is therefore time order, and two sources (threads share one, processes do not) collide
only if they draw the same 60 bits and overlapping counters in the same millisecond. **Invariant:** each id of
a source is greater than the one before, across threads and even if the clock goes backwards; a forked child
draws new random bits, so it repeats nothing.

The counter comes before the random bits so that ids can be shortened: the first 14 characters (`short_id`)
differ for all ids of a source, and for those of two processes unless both their times and their counters are
equal. Whatever shows a short id also accepts it, and any other unique beginning of an id (`only_match`).

A given id (of a thread, ref, list or batch) is any printable text of up to 512 characters. `file_name` maps
ids to file names, injectively: ordinary ids map to themselves, and any other id gets a ``~``, which no
ordinary id contains, and 128 bits of its SHA-256.

A scope is the unit of erasure: one thread, one run, one memory. It is written ``<namespace>/<kind>/<id>``,
with ``/`` and ``%`` percent-escaped inside each part, so that it parses back to exactly one triple, and so
that everything in a namespace (a user, a project) shares one prefix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from threading import Lock
from typing import Final, overload
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
_BEGINNING: Final = re.compile(f"[0-7][{_ALPHABET}]{{3,25}}")
_HASH: Final = re.compile("[0-9a-f]{64}")

ID_CHARS: Final = 26
SHORT_CHARS: Final = 14
"""How many characters of a generated id tell it from all others of its source."""
_SHORT_HASH_CHARS: Final = 12
_CANDIDATES: Final = 5

_COUNTER_END: Final = 1 << 20
# The top bit starts clear, so there is always room for half a million ids in a millisecond.
_FIRST_COUNTER: Final = (1 << 19) - 1
_DRAWN: Final = 640
"""Random bytes drawn per system call: each call releases the GIL."""

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ordinary: Final = re.compile(f"[!-~][ -~]{{0,{MAX_ID_CHARS - 1}}}").fullmatch
_SPACE: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9_.-]{{0,{MAX_SPACE_CHARS - 1}}}")
_WINDOWS_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_NOT_SLUG: Final = re.compile(r"[^A-Za-z0-9_-]+")


class IdSource:
    """A source of strictly increasing ids, safe across threads and forks."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._now_us = clock.now_us
        self._random_bytes = random_bytes
        self._lock = Lock()
        self._drawn = b""
        self._draw(ms=0)
        _sources.add(self)

    def next(self) -> str:
        """Return a new id, greater than all earlier ones of this source."""
        return self.next_with_time()[0]

    def next_with_time(self) -> tuple[str, int]:
        """Return a new id and its time (see `time_of`)."""
        with self._lock:
            now_ms = self._now_us() // 1000
            if now_ms > self._ms:
                self._draw(ms=now_ms)
            else:
                self._counter += 1
                if self._counter == _COUNTER_END:
                    self._draw(ms=self._ms + 1)
            counter = self._counter
            return self._time + _PAIRS[counter >> 10] + _PAIRS[counter & 1023] + self._tail, self._ms * 1000

    def _draw(self, *, ms: int) -> None:
        if not self._drawn:
            self._drawn = self._random_bytes(_DRAWN)
        drawn = int.from_bytes(self._drawn[-10:], "big")
        self._drawn = self._drawn[:-10]
        self._ms = ms
        self._counter = drawn >> 60 & _FIRST_COUNTER
        # All but the counter stays the same for a millisecond, so it is formatted once.
        self._time = (
            f"{_PAIRS[ms >> 40]}{_PAIRS[ms >> 30 & 1023]}{_PAIRS[ms >> 20 & 1023]}{_PAIRS[ms >> 10 & 1023]}"
            f"{_PAIRS[ms & 1023]}"
        )
        self._tail = (
            f"{_PAIRS[drawn >> 50 & 1023]}{_PAIRS[drawn >> 40 & 1023]}{_PAIRS[drawn >> 30 & 1023]}"
            f"{_PAIRS[drawn >> 20 & 1023]}{_PAIRS[drawn >> 10 & 1023]}{_PAIRS[drawn & 1023]}"
        )

    def _after_fork(self) -> None:
        # Another thread may have held the lock during the fork, so the child needs a new one. It continues in
        # the next millisecond with new random bits: greater than every inherited id, unlike the parent's.
        self._lock = Lock()
        self._drawn = b""
        self._draw(ms=self._ms + 1)


def new_id() -> str:
    """Return a new id from the source that the whole process shares."""
    return _shared.next_with_time()[0]


def new_id_with_time() -> tuple[str, int]:
    """Return a new id and its time (see `time_of`)."""
    return _shared.next_with_time()


def time_of(made_id: str) -> int:
    """Return when an id was generated, in microseconds (exact to the millisecond)."""
    if _MADE_ID.fullmatch(made_id) is None:
        raise InvalidInput(
            f"{_shown(made_id)} was not generated by treering: not 26 characters of {_ALPHABET}"
        )
    ms = 0
    for digit in made_id[:10]:
        ms = ms << 5 | _DIGITS[digit]
    return ms * 1000


def short_id(text: str) -> str:
    """Return enough of an id to recognise it and to pass it on: 14 characters of a generated id, after its
    prefix, and 12 of a hash. An id that someone chose is not shortened.
    """
    return text[: _short_length(text)]


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return the short form of each id, longer where two of them would look the same."""
    ordered = sorted(set(ids))
    short: dict[str, str] = {}
    for index, each in enumerate(ordered):
        neighbours = ordered[max(index - 1, 0) : index] + ordered[index + 1 : index + 2]
        shared = max((_common_length(each, other) for other in neighbours), default=0)
        short[each] = each[: max(shared + 1, _short_length(each))]
    return short


def only_match(ids: Iterable[str], text: str, what: str) -> str | None:
    """Return the one id that begins with ``text``, or ``None``. Raise `InvalidInput` if there are several.

    ``what`` names the kind of id in the error ('checkpoint').
    """
    found = sorted({each for each in ids if each.startswith(text)})
    if text in found or len(found) == 1:
        return text if text in found else found[0]
    if not found:
        return None
    shown = ", ".join(short_ids(found)[each] for each in found[:_CANDIDATES])
    more = ", ..." if len(found) > _CANDIDATES else ""
    raise InvalidInput(f"{what} {text!r} is ambiguous: {shown}{more}; give more characters")


def may_be_shortened(text: str) -> bool:
    """Return whether a text can be the beginning of a generated id without its prefix."""
    return _BEGINNING.fullmatch(text) is not None


def _common_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def _short_length(text: str) -> int:
    if _HASH.fullmatch(text) is not None:
        return _SHORT_HASH_CHARS
    prefix = text.rfind("_") + 1
    return prefix + SHORT_CHARS if _MADE_ID.fullmatch(text, prefix) is not None else len(text)


def check_id(text: str, what: str) -> str:
    """Return ``text`` if it is a valid id; ``what`` names it in the error ('thread id')."""
    # A single regular expression accepts common ids; anything but ASCII takes the slow path.
    if type(text) is str and _ordinary(text):
        return text
    return _check_closely(text, what)


RESERVED: Final = "treering."
"""The prefix of spaces that treering uses itself."""
SIDE: Final = "side."
"""The prefix of spaces that are namespaces of a project: ``side.<length>.<project>.<name>``."""


def side_of(project: str) -> str:
    """Return the prefix of the side spaces of a project, unique for each project."""
    return f"{SIDE}{len(project)}.{project}."


def project_of(space: str) -> str:
    """Return the project that a space belongs to."""
    length, dot, rest = space.removeprefix(SIDE).partition(".")
    if space.startswith(SIDE) and dot and length.isdecimal() and rest[int(length) : int(length) + 1] == ".":
        return rest[: int(length)]
    return space


def check_space(text: str) -> str:
    """Return ``text`` if it is a valid name of a space (a tenant)."""
    if type(text) is str and _SPACE.fullmatch(text) is not None:
        return text
    raise InvalidInput(
        f"invalid space {_shown(text)}; use 1 to {MAX_SPACE_CHARS} of A-Z a-z 0-9 _ . - "
        "and do not start with a dot"
    )


def file_name(any_id: str) -> str:
    """Return a file name of at most 200 bytes for this id alone, on any case-sensitive file system."""
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
        problem = f"has type {type(text).__name__}; pass a str"
    elif not text:
        problem = "is empty; use at least one character"
    elif len(text) > MAX_ID_CHARS:
        problem = f"has {len(text)} characters, the limit is {MAX_ID_CHARS}; shorten it or use a hash of it"
    elif text.isspace():
        problem = "is only white space; use a visible character"
    elif found := _FORBIDDEN.search(text):
        kind = "a lone surrogate" if "\ud800" <= found[0] <= "\udfff" else "a control character"
        problem = f"contains {kind} (U+{ord(found[0]):04X} at position {found.start()}); remove it"
    else:
        return str.__str__(text)  # a plain str, even for a subclass
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


MAINTENANCE_SCOPE: Final = "/store/maintenance"
"""The scope of audit events, so that forgetting anything else never removes them."""
RUN_MOVED: Final = "run.moved"
"""The kind of an event that links a run's scope to its thread: the run began before its thread was known, so
it has a scope of its own. Forgetting the thread erases that scope as well."""
_THREAD: Final = "thread"


class Scope(msgspec.Struct, frozen=True):
    """A namespace (``""`` for none), a kind (``thread``, ``run``, ...) and an id."""

    namespace: str
    kind: str
    id: str

    def __str__(self) -> str:
        return f"{_quote(self.namespace)}/{_quote(self.kind)}/{_quote(self.id)}"


def parse_scope(text: str) -> Scope:
    """Parse the text of a scope."""
    parts = text.split("/")
    if len(parts) != 3:  # noqa: PLR2004 - namespace, kind, id
        raise InvalidInput(f"not a scope: {text[:80]!r}; expected <namespace>/<kind>/<id>")
    return Scope(*map(_unquote, parts))


@lru_cache(maxsize=4096)
def thread_scope_of(thread: str) -> str | None:
    """Return the scope of a thread, given its name in events (``<namespace>/<id>``, namespace escaped)."""
    namespace, separator, name = thread.partition("/")
    return f"{namespace}/{_THREAD}/{_quote(name)}" if separator else None


def thread_of_scope(scope: str) -> str | None:
    """Return the name of a thread in events, given its scope; ``None`` for any other kind of scope.

    The inverse of `thread_scope_of`.
    """
    namespace, _, rest = scope.partition("/")
    kind, _, name = rest.partition("/")
    return f"{namespace}/{_unquote(name)}" if kind == _THREAD else None


def namespace_prefix(namespace: str) -> str:
    """Return the common prefix of all scopes in a namespace."""
    return _quote(namespace) + "/"


@lru_cache(maxsize=4096)
def thread_scope(thread_id: str, namespace: str) -> str:
    """Return the scope of a thread."""
    return str(Scope(namespace, _THREAD, thread_id))


@overload
def thread_key(thread_id: str, namespace: str) -> str: ...
@overload
def thread_key(thread_id: str | None, namespace: str) -> str | None: ...
def thread_key(thread_id: str | None, namespace: str) -> str | None:
    """Return the name of a thread in events: its namespace, then its id. Two threads never share one."""
    return None if thread_id is None else namespace_prefix(namespace) + thread_id


def thread_of_key(key: str | None) -> tuple[str | None, str]:
    """Return the id and the namespace of a thread, given its name in events. The inverse of `thread_key`."""
    scope = None if key is None else thread_scope_of(key)
    if scope is None:
        return key, ""
    parsed = parse_scope(scope)
    return parsed.id, parsed.namespace


def _quote(part: str) -> str:
    if "%" in part or "/" in part:
        return part.replace("%", "%25").replace("/", "%2F")
    return part


def _unquote(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")
