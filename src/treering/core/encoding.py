"""Lossless encoding of Python values as content, without pickle.

A str becomes text, bytes stay bytes, and everything else becomes canonical JSON: sorted keys, compact,
UTF-8, so equal values have equal bytes and the same object name. A value that JSON cannot represent becomes
an object with a single key that starts with ``$``: ``{"$decimal": "1.10"}``, ``{"$tuple": [1, 2]}``, or
``{"$dict": [[1, "a"]]}`` for keys that are not str. A user's own dict of that shape gets one more ``$``,
which decoding removes. **Invariant:** ``decode(encode(v)) == v`` with the same types, or `encode` raises
`Unencodable` with the path of the offending value. Decoding only builds plain data and registered types;
a dict with an unknown tag is returned as it is.

The fast path is one walk over the types, then orjson with a ``default`` hook for types it does not know.
Values that orjson would write with loss (a tuple, a NaN) or refuses take a second, slower walk. Decoding
searches for ``{"$`` first: quotes inside JSON strings are always escaped, so these three bytes only occur
where the first key of an object starts with ``$``.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import msgspec
import orjson

from treering.core.content import Content
from treering.errors import Corrupt, InvalidInput, Unencodable


def to_iso(moment: datetime | time) -> object:
    """Return ISO 8601 text, with the fold if it is set, and the name of the zone if it has one."""
    offset = moment.utcoffset()
    zone = _zone_name(moment)
    if zone is not None:
        return [moment.isoformat(), moment.fold, zone]
    if moment.tzinfo is not None and (offset is None or offset.microseconds):
        # Python's own parser treats an offset below one second as UTC.
        raise ValueError(f"its time zone has the offset {offset}; only whole seconds can be stored")
    return [moment.isoformat(), 1] if moment.fold else moment.isoformat()


def datetime_from_iso(plain: str | list[Any]) -> datetime:
    """The inverse of `to_iso`."""
    text, fold, zone = _parts(plain)
    moment = datetime.fromisoformat(text).replace(fold=fold)
    if zone is None or (found := _find_zone(zone)) is None:
        return moment
    local = moment.replace(tzinfo=found)
    # If the rules of the zone have changed since, what is kept is the moment, not what clocks said.
    return local if local.utcoffset() == moment.utcoffset() else moment.astimezone(found)


def time_from_iso(plain: str | list[Any]) -> time:
    """The inverse of `to_iso`."""
    text, fold, zone = _parts(plain)
    moment = time.fromisoformat(text).replace(fold=fold)
    return moment if zone is None else moment.replace(tzinfo=_find_zone(zone))


def _parts(plain: str | list[Any]) -> tuple[str, int, str | None]:
    """Return the text, the fold and the name of the zone of a stored time."""
    if isinstance(plain, str):
        return plain, 0, None
    text, fold, *zone = plain
    return text, fold, zone[0] if zone else None


def _zone_name(moment: datetime | time) -> str | None:
    zone = moment.tzinfo
    return getattr(zone, "key", None) if type(zone).__name__ == "ZoneInfo" else None


def _find_zone(name: str) -> tzinfo | None:
    """Return a zone; ``None`` if this machine does not know it."""
    from zoneinfo import ZoneInfo  # most stores have none

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        return None


def from_hex(digits: str) -> int:
    """Parse hexadecimal digits."""
    return int(digits, 16)


def to_days(span: timedelta) -> list[int]:
    """Return days, seconds and microseconds."""
    return [span.days, span.seconds, span.microseconds]


def from_days(parts: list[int]) -> timedelta:
    """The inverse of `to_days`."""
    days, seconds, microseconds = parts
    return timedelta(days, seconds, microseconds)


def to_base64(data: bytes) -> str:
    """Encode bytes as base64 text."""
    return b64encode(data).decode()


def from_base64(text: str) -> bytes:
    """The inverse of `to_base64`; raise an error for invalid base64."""
    return b64decode(text, validate=True)


def from_pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Build a dict with keys of any type."""
    return dict(pairs)


MAX_DEPTH: Final = 200
"""Maximum nesting of the JSON of one value; a tag counts as a level."""

T = TypeVar("T")

if TYPE_CHECKING:

    def _kind_of(_value: object, /) -> type[object]: ...
else:
    _kind_of = type  # the alias keeps the type checker from narrowing Any

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_OWN_TYPES: Final = _LEAVES | {dict, list, set, frozenset}
# orjson writes these without loss, or refuses them (a huge int, a lone surrogate).
_SAFE_LEAVES: Final = _LEAVES - {float}
# orjson writes these with loss and has no option to pass them through.
_LOSSY: Final = (tuple, UUID, Enum)
_STRICT: Final = (
    orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
)
_SORTED: Final = _STRICT | orjson.OPT_SORT_KEYS
_loads: Final = msgspec.json.Decoder().decode
_DOLLAR: Final = ord("$")
"""Searched for before the three bytes that start a tag: finding a single byte is much faster."""
_MIN_INT: Final = -(1 << 63)
_MAX_INT: Final = (1 << 64) - 1

_SHOWN_STEPS: Final = 12
_MANY: Final = 16

_TAG: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = re.compile(r"\\(\\|u[0-9a-f]{4})")


class Codecs:
    """A registry of encodable types. The functions of this module are methods of the instance `codecs`."""

    def __init__(self) -> None:
        self._by_type: dict[type, _Codec] = {}
        self._quick: frozenset[type] = _SAFE_LEAVES | {set, frozenset}
        # Tags for values of JSON's own types that JSON cannot represent; they have no type to register.
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
        """Store values of exactly this type (no subclasses) as ``{"$<tag>": to_plain(value)}``.

        ``to_plain`` may return anything encodable; ``from_plain`` receives it decoded. The tag becomes part
        of the stored data, so it must never change.
        """
        if _TAG.fullmatch(tag) is None:
            raise InvalidInput(f"invalid codec tag {tag!r}; use a letter followed by letters, digits, _ . -")
        if "$" + tag in self._by_tag:
            raise InvalidInput(
                f"codec tag {tag!r} already exists; choose another one for {kind.__qualname__}"
            )
        if kind in self._by_type or kind in _OWN_TYPES:
            raise InvalidInput(f"{kind.__qualname__} already has an encoding")
        self._by_type[kind] = _Codec(tag="$" + tag, to_plain=to_plain)
        self._by_tag["$" + tag] = from_plain
        if not issubclass(kind, _LOSSY):
            self._quick |= {kind}

    def encode(self, value: Any, *, keep_order: bool = False) -> Content:
        """Encode a value as content; ``keep_order`` keeps the order of dict keys instead of sorting them."""
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
        """Return the encoded value; a bytes-like value is returned as bytes."""
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
        """Return the encoded values in order."""
        return list(self.decode_each(contents))

    def decode_each(
        self, contents: Iterable[Content], *, others: Callable[[Content], Any] | None = None
    ) -> Iterator[Any]:
        """Yield the encoded values; ``others`` replaces `decode` for anything but JSON without tags.

        msgspec decodes long texts without an extra buffer, but recurses for each nesting level. Where the
        stack is too small for that, orjson decodes the value; it also reports what is wrong with bad JSON.
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
        """Return the canonical JSON of a value, with tags where JSON is not enough."""
        option = _STRICT if keep_order else _SORTED
        if (
            _kind_of(value) is dict
            and _SAFE_LEAVES.issuperset(map(_kind_of, value.values()))
            and not _looks_tagged(value)
        ):
            try:
                return orjson.dumps(value, option=option)
            except orjson.JSONEncodeError:
                pass  # an unusual value after all
        walk = _Tagging(self._by_type, keep_order=keep_order)
        try:
            if _is_quick((value,), self._quick, 0):
                return orjson.dumps(value, walk.tagged, option)
        except (orjson.JSONEncodeError, RecursionError):
            # Start over with an empty trail: the slow walk succeeds or reports the path of the problem.
            walk = _Tagging(self._by_type, keep_order=keep_order)
        try:
            return orjson.dumps(walk.plain(value, 1), option=option)
        except RecursionError as error:
            raise walk.refusal("the call stack is too small for a value nested this deeply") from error

    def decode_json(self, data: bytes) -> Any:
        """Return the value of canonical JSON."""
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise Corrupt(
                f"stored JSON does not parse ({error}); run verify and restore it from a backup"
            ) from error
        return self._restore(value) if is_tagged(data) else value

    def _restore(self, value: object) -> Any:
        # Without recursion: list every object that may be a tag, parents first, then replace them in place
        # from the end, so that nested tags are replaced before their parents.
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
    """Whether some JSON may contain a tag. If not, any JSON decoder returns the same value."""
    return _DOLLAR in data and b'{"$' in data


class _Codec(msgspec.Struct, frozen=True, kw_only=True):
    tag: str
    to_plain: Callable[[Any], object]


class _Tagging:
    """The slow walk: a copy of the value as plain JSON, or `Unencodable` with the path of the problem."""

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
            raise self.refusal(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself; flatten it")
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
                "or register a codec with treering.core.encoding.codecs.register(...)"
            )
        try:
            plain = codec.to_plain(value)
        except Exception as error:
            raise self.refusal(f"the codec of {kind.__qualname__} raised: {error}") from error
        return {codec.tag: self.plain(plain, depth + 1)}


def _is_quick(members: Iterable[Any], quick: frozenset[type], depth: int) -> bool:
    """Whether orjson writes all of these without loss, calls the hook for them, or refuses them."""
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
    # For embeddings: three passes in C instead of a loop over a thousand floats.
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
