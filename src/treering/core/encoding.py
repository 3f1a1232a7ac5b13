"""Values to content and back, without pickle and without loss.

A str becomes text, bytes stay bytes, and everything else becomes canonical JSON: sorted keys, compact,
UTF-8, so equal values have equal bytes and therefore one object name. What JSON cannot say is written as
an object with a single key that starts with ``$``: ``{"$decimal": "1.10"}``, ``{"$tuple": [1, 2]}``,
``{"$dict": [[1, "a"]]}`` for keys that are not str. A user's own dict of that shape gets one more ``$``,
which decoding takes off again. **Invariant:** ``decode(encode(v)) == v`` with the same types, or `encode`
raises `Unencodable` and says where in the value; decoding builds plain data and registered types only,
and a tag that it does not know stays visible as the dict it is.

The quick way is one walk over the types and then orjson, which asks back for each value that it does not
know; values that orjson would write with loss (a tuple, a NaN), and those that are refused, take a second,
slower walk. Decoding looks for ``{"$`` first: a quote inside a JSON string is always escaped, so those
three bytes occur exactly where the first key of an object has a ``$``.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import msgspec
import orjson

from treering.core.content import Content
from treering.errors import Corrupt, InvalidInput, Unencodable

# -----------------------------------------------------------------------------------------------------------
# How values that JSON has no form for are told in it: moments, spans of time, bytes, large numbers.


def to_iso(moment: datetime | time) -> object:
    """A moment in ISO 8601, with its fold where it has one."""
    offset = moment.utcoffset()
    if moment.tzinfo is not None and (offset is None or offset.microseconds):
        # Python's own parser reads an offset below one second as UTC.
        raise ValueError(f"its time zone gives the offset {offset}, and only whole seconds can be kept")
    return [moment.isoformat(), 1] if moment.fold else moment.isoformat()


def datetime_from_iso(plain: str | list[Any]) -> datetime:
    """The moment of `to_iso`."""
    text, fold = (plain, 0) if isinstance(plain, str) else plain
    return datetime.fromisoformat(text).replace(fold=fold)


def time_from_iso(plain: str | list[Any]) -> time:
    """The time of day of `to_iso`."""
    text, fold = (plain, 0) if isinstance(plain, str) else plain
    return time.fromisoformat(text).replace(fold=fold)


def from_hex(digits: str) -> int:
    """A number out of its hexadecimal digits."""
    return int(digits, 16)


def to_days(span: timedelta) -> list[int]:
    """Days, seconds and microseconds of a span."""
    return [span.days, span.seconds, span.microseconds]


def from_days(parts: list[int]) -> timedelta:
    """The span of `to_days`."""
    days, seconds, microseconds = parts
    return timedelta(days, seconds, microseconds)


def to_base64(data: bytes) -> str:
    """Bytes as text."""
    return b64encode(data).decode()


def from_base64(text: str) -> bytes:
    """The bytes of `to_base64`; what is no base64 is an error."""
    return b64decode(text, validate=True)


def from_pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict whose keys may be anything."""
    return dict(pairs)


# -----------------------------------------------------------------------------------------------------------

MAX_DEPTH: Final = 200
"""Levels of JSON that one value may nest; a tag is a level of its own."""

T = TypeVar("T")

if TYPE_CHECKING:

    def _kind_of(_value: object, /) -> type[object]: ...
else:
    _kind_of = type  # under a name that keeps the checker from narrowing Any to something less known

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_OWN_TYPES: Final = _LEAVES | {dict, list, set, frozenset}
# What orjson writes without loss or refuses by itself (a huge int, a lone surrogate).
_SAFE_LEAVES: Final = _LEAVES - {float}
# What orjson writes with loss and cannot be told to leave alone.
_LOSSY: Final = (tuple, UUID, Enum)
_STRICT: Final = (
    orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
)
_SORTED: Final = _STRICT | orjson.OPT_SORT_KEYS
_loads: Final = msgspec.json.Decoder().decode
_DOLLAR: Final = ord("$")
"""Looked for before the three bytes that a tag begins with: one byte, as a number, is found much faster."""
_MIN_INT: Final = -(1 << 63)
_MAX_INT: Final = (1 << 64) - 1

_SHOWN_STEPS: Final = 12
_MANY: Final = 16

_TAG: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = re.compile(r"\\(\\|u[0-9a-f]{4})")


class Codecs:
    """The types that have an encoding. `codecs` is the instance behind the functions of this module."""

    def __init__(self) -> None:
        self._by_type: dict[type, _Codec] = {}
        self._quick: frozenset[type] = _SAFE_LEAVES | {set, frozenset}
        # These have no type of their own to register: they say what JSON's own types fall short of.
        self._by_tag: dict[str, Callable[[Any], Any]] = {
            "$str": _unescape,
            "$int": from_hex,
            "$float": float,
            "$dict": from_pairs,
            "$set": set,
            "$frozenset": frozenset,
        }
        self.register(tuple, "tuple", list, tuple)
        self.register(bytes, "bytes", to_base64, from_base64)
        self.register(datetime, "datetime", to_iso, datetime_from_iso)
        self.register(date, "date", date.isoformat, date.fromisoformat)
        self.register(time, "time", to_iso, time_from_iso)
        self.register(timedelta, "timedelta", to_days, from_days)
        self.register(Decimal, "decimal", str, Decimal)
        self.register(UUID, "uuid", str, UUID)
        self._by_type |= dict.fromkeys((bytearray, memoryview), self._by_type[bytes])

    def register(
        self, kind: type[T], tag: str, to_plain: Callable[[T], object], from_plain: Callable[[Any], T]
    ) -> None:
        """Store values of exactly this type (no subclass) as ``{"$<tag>": to_plain(value)}``.

        What ``to_plain`` returns may hold anything that has an encoding; ``from_plain`` gets it back
        decoded. The tag is part of stored data: choose it once and keep it.
        """
        if _TAG.fullmatch(tag) is None:
            raise InvalidInput(
                f"codec tag {tag!r} is not acceptable; begin with a letter, then letters, digits, _ . -"
            )
        if "$" + tag in self._by_tag:
            raise InvalidInput(f"codec tag {tag!r} is taken; choose another one for {kind.__qualname__}")
        if kind in self._by_type or kind in _OWN_TYPES:
            raise InvalidInput(f"{kind.__qualname__} has an encoding already")
        self._by_type[kind] = _Codec(tag="$" + tag, to_plain=to_plain)
        self._by_tag["$" + tag] = from_plain
        if not issubclass(kind, _LOSSY):
            self._quick |= {kind}

    def encode(self, value: Any, *, keep_order: bool = False) -> Content:
        """Content of ``value``; ``keep_order`` keeps the order of dict keys instead of sorting them."""
        kind = _kind_of(value)
        if kind is str:
            try:
                return Content("text", value.encode())
            except UnicodeEncodeError:  # text is always valid UTF-8; JSON has a tag for lone surrogates
                pass
        elif kind is bytes or kind is bytearray or kind is memoryview:
            return Content("bytes", bytes(value))
        return Content("json", self.encode_json(value, keep_order=keep_order))

    def decode(self, content: Content) -> Any:
        """The value that was encoded; bytes-like values come back as bytes."""
        if content.kind == "json":
            return self.decode_json(content.data)
        if content.kind == "bytes":
            return content.data
        if content.kind == "text":
            try:
                return content.data.decode()
            except UnicodeDecodeError as error:
                raise Corrupt(
                    f"stored text is not UTF-8 ({error}); run verify and restore it from a backup"
                ) from error
        raise InvalidInput(f"content of kind {content.kind!r} is not a value; read it with decode_tree")

    def decode_all(self, contents: Iterable[Content]) -> list[Any]:
        """The values that were encoded, in order: what a long conversation is read with."""
        return list(self.decode_each(contents))

    def decode_each(
        self, contents: Iterable[Content], *, others: Callable[[Content], Any] | None = None
    ) -> Iterator[Any]:
        """The same one by one; ``others`` decodes, in place of `decode`, what is not JSON without tags.

        msgspec needs no buffer of its own beside a long text. It calls itself for each level of a value:
        where there is no room left for that, orjson does it, which also says what is wrong with bad JSON.
        """
        decode, loads = others or self.decode, _loads
        for content in contents:
            if content.kind == "json" and (_DOLLAR not in (data := content.data) or b'{"$' not in data):
                try:
                    value = loads(data)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    value = decode(content)
            else:
                value = decode(content)
            yield value

    def encode_json(self, value: Any, *, keep_order: bool = False) -> bytes:
        """Canonical JSON of ``value``, with tags where JSON falls short."""
        option = _STRICT if keep_order else _SORTED
        if (
            _kind_of(value) is dict
            and _SAFE_LEAVES.issuperset(map(_kind_of, value.values()))
            and not _looks_tagged(value)
        ):
            try:
                return orjson.dumps(value, option=option)
            except orjson.JSONEncodeError:
                pass  # it holds something odd after all
        walk = _Tagging(self._by_type, keep_order=keep_order)
        try:
            if _is_quick((value,), self._quick, 0):
                return orjson.dumps(value, walk.tagged, option)
        except (orjson.JSONEncodeError, RecursionError):
            # A new walk, with an empty trail: it can do it, or says where it cannot be done.
            walk = _Tagging(self._by_type, keep_order=keep_order)
        try:
            return orjson.dumps(walk.plain(value, 1), option=option)
        except RecursionError as error:
            raise walk.refusal("the call stack has no room left for a value nested this deeply") from error

    def decode_json(self, data: bytes) -> Any:
        """The value of canonical JSON."""
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise Corrupt(
                f"stored JSON does not parse ({error}); run verify and restore it from a backup"
            ) from error
        return self._restore(value) if is_tagged(data) else value

    def _restore(self, value: object) -> Any:
        # Without recursion: list every object that may be a tag, parents first, then replace them in place
        # from the end, so that each one's own contents are finished before it.
        root: list[Any] = [value]
        waiting: list[Any] = [root]
        tagged: list[tuple[Any, Any]] = []
        while waiting:
            parent = waiting.pop()
            for key, item in parent.items() if _kind_of(parent) is dict else enumerate(parent):
                kind = _kind_of(item)
                if kind is dict:
                    waiting.append(item)
                    if _looks_tagged(item):
                        tagged.append((parent, key))
                elif kind is list:
                    waiting.append(item)
        for parent, key in reversed(tagged):
            ((tag, plain),) = parent[key].items()
            parent[key] = self._untag(tag, plain)
        return root[0]

    def _untag(self, tag: str, plain: object) -> object:
        if tag.startswith("$$"):
            return {tag[1:]: plain}
        from_plain = self._by_tag.get(tag)
        if from_plain is None:
            return {tag: plain}
        try:
            return from_plain(plain)
        except Exception as error:
            raise Corrupt(f"stored {tag} value cannot be read ({error!r}); run verify") from error


def is_tagged(data: bytes) -> bool:
    """Whether anything in some JSON may be a tag: if not, it says what any other decoder reads in it."""
    return _DOLLAR in data and b'{"$' in data


class _Codec(msgspec.Struct, frozen=True, kw_only=True):
    tag: str
    to_plain: Callable[[Any], object]


class _Tagging:
    """The slower walk: a copy of the value in which all is plain JSON, or a refusal that says where."""

    __slots__ = ("_by_type", "_keep_order", "_trail")

    def __init__(self, by_type: dict[type, _Codec], *, keep_order: bool) -> None:
        self._by_type = by_type
        self._keep_order = keep_order
        self._trail: list[object] = []

    def tagged(self, value: Any) -> Any:
        return self.plain(value, 1)

    def plain(self, value: Any, depth: int) -> Any:
        kind = _kind_of(value)
        if kind in _LEAVES:
            return _plain_leaf(value)
        if depth > MAX_DEPTH:
            raise self.refusal(f"it nests deeper than {MAX_DEPTH} levels, or contains itself; flatten it")
        if kind is dict:
            return self._dict(value, depth)
        if kind is list:
            return self._list(value, depth)
        if kind is set or kind is frozenset:
            return {"$" + kind.__name__: sorted(self._list(value, depth + 1), key=_sort_key)}
        return self._registered(value, depth)

    def refusal(self, problem: str) -> Unencodable:
        steps = [_step(key) for key in self._trail]
        if len(steps) > _SHOWN_STEPS:
            steps[8:-3] = ["[...]"]
        return Unencodable(f"cannot store ${''.join(steps)}: {problem}")

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if not all(type(key) is str and not _SURROGATE.search(key) for key in value):
            return {"$dict": self._pairs(value, depth + 1)}
        plain: dict[str, Any] = {}
        for key, item in value.items():
            self._trail.append(key)
            plain[key] = self.plain(item, depth + 1)
            self._trail.pop()
        return {"$" + key: item for key, item in plain.items()} if _looks_tagged(plain) else plain

    def _pairs(self, value: dict[Any, Any], depth: int) -> Any:
        pairs: list[Any] = []
        for key, item in value.items():
            self._trail.append(key)
            pairs.append([self.plain(key, depth + 2), self.plain(item, depth + 2)])
            self._trail.pop()
        return pairs if self._keep_order else sorted(pairs, key=_sort_key)

    def _list(self, value: Iterable[Any], depth: int) -> list[Any]:
        plain: list[Any] = []
        for index, item in enumerate(value):
            self._trail.append(index)
            plain.append(self.plain(item, depth + 1))
            self._trail.pop()
        return plain

    def _registered(self, value: Any, depth: int) -> Any:
        kind = _kind_of(value)
        codec = self._by_type.get(kind)
        if codec is None:
            raise self.refusal(
                f"{kind.__module__}.{kind.__qualname__} has no safe encoding; convert it to plain data, "
                "or give its type one with treering.core.encoding.codecs.register(...)"
            )
        try:
            plain = codec.to_plain(value)
        except Exception as error:
            raise self.refusal(f"the codec for {kind.__qualname__} refused it: {error}") from error
        return {codec.tag: self.plain(plain, depth + 1)}


def _is_quick(members: Iterable[Any], quick: frozenset[type], depth: int) -> bool:
    """Whether orjson writes these without loss, or asks back about them, or refuses them by itself."""
    for item in members:
        kind = _kind_of(item)
        if kind in quick:
            continue
        if kind is float:
            if not isfinite(item):
                return False
        elif depth == MAX_DEPTH:
            return False
        elif kind is dict:
            if _looks_tagged(item):
                return False
            values = item.values()
            if not (quick.issuperset(map(_kind_of, values)) or _is_quick(values, quick, depth + 1)):
                return False
        elif kind is not list or not (_is_all_finite(item) or _is_quick(item, quick, depth + 1)):
            return False
    return True


def _looks_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and str(next(iter(value))).startswith("$")


def _is_all_finite(value: list[Any]) -> bool:
    # Embeddings: three passes in C instead of a loop over a thousand floats.
    return len(value) > _MANY and set(map(type, value)) == {float} and isfinite(sum(value))


def _plain_leaf(value: Any) -> Any:
    if type(value) is str and _SURROGATE.search(value):
        return {"$str": _escape(value)}
    if type(value) is int and not _MIN_INT <= value <= _MAX_INT:
        return {"$int": f"{value:#x}"}
    if type(value) is float and not isfinite(value):
        return {"$float": repr(value)}
    return value


def _sort_key(plain: object) -> bytes:
    return orjson.dumps(plain, option=_SORTED)


def _step(key: object) -> str:
    if type(key) is int:
        return f"[{key}]"
    if type(key) is str and _WORD.fullmatch(key):
        return f".{key}"
    return f"[{key!a:.40}]"


def _escape(text: str) -> str:
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\\", "\\\\"))


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1][1:], 16)) if found[1] != "\\" else "\\", text)


codecs: Final = Codecs()
encode = codecs.encode
encode_json = codecs.encode_json
decode = codecs.decode
decode_all = codecs.decode_all
decode_each = codecs.decode_each
decode_json = codecs.decode_json
