"""Values survive a round trip, equal values have equal bytes, and unsafe values are rejected by location."""

import copy
import enum
import json
import math
import random
import sys
from collections import OrderedDict, namedtuple
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treering.core.content import Content
from treering.core.encoding import Codecs, decode, decode_all, decode_each, decode_json, encode, encode_json
from treering.errors import Corrupt, InvalidInput, Unencodable

ANY_TEXT = st.text(st.characters(), max_size=20) | st.from_regex(r"\A\$+[a-z]{0,8}\Z")
OFFSETS = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
HASHABLE_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62, max_value=2**70)
    | st.floats()
    | ANY_TEXT
    | st.binary(max_size=20)
    | st.datetimes()
    | st.datetimes(timezones=OFFSETS)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals().filter(lambda number: not number.is_snan())  # has no hash
    | st.uuids()
)
HASHABLE = st.recursive(
    HASHABLE_LEAVES,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(ANY_TEXT, inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=20,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def exact(value):
    """A form in which only values of equal types, signs and NaNs are equal."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, [exact(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted((exact(item) for item in value), key=repr)
    if kind is dict:
        return kind, sorted(((exact(key), exact(item)) for key, item in value.items()), key=repr)
    return kind, hex(value) if kind is int else repr(value)


@given(VALUES)
@example(math.nan)
@example([-0.0, math.inf, -math.inf])
@example(10**5000)
@example({"$decimal": "1.10"})
@example({"$$": {"$": {"$x": []}}})
@example({"$ref": "#/definitions/a", "other": 1})
@example(("\ud800", "\ud83d\ude00", "back\\slash \\ud800 \udfff"))
@example({"\ud800": 1})
@example({1: "a", "1": "b", None: "c", (1, 2): {3: 4}})
@example(Decimal("sNaN"))
@example(Decimal("-0E+10"))
@example(timedelta.max)
@example(timedelta.min)
@example(datetime.max)  # noqa: DTZ901 - naive is what is tested
@example('text with {"$tuple": [1]} in it')
@example(['text with {"$tuple": [1]} in it'])
def test_a_value_comes_back_with_its_types(value):
    assert exact(decode(encode(value))) == exact(value)


@given(st.lists(VALUES, max_size=5))
def test_decoding_many_values_equals_decoding_each(values):
    assert exact(decode_all([encode(value) for value in values])) == exact(values)


@pytest.mark.parametrize("damaged", [b"[1,", b"[1]2", b'"\xff"', b'"\\ud800"', b'"\x01"'])
def test_one_damaged_value_among_many_is_detected(damaged):
    with pytest.raises(Corrupt, match="does not parse"):
        decode_all([encode([1]), Content("json", damaged)])


def test_many_values_are_decoded_near_the_recursion_limit():
    """The fast decoder recurses for each level of a value; the other one does not."""
    value = "deep"
    for _ in range(150):
        value = [value]
    contents = [encode(value), encode({"tagged": (1, 2)})]

    def with_room_for(calls):
        return decode_all(contents) if calls == 0 else with_room_for(calls - 1)

    before = sys.getrecursionlimit()
    depth = 0
    frame = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 200)
    try:
        assert with_room_for(100) == [value, {"tagged": (1, 2)}]
    finally:
        sys.setrecursionlimit(before)


def test_values_that_are_not_plain_json_may_be_decoded_by_a_callback():
    contents = [encode([1]), encode("text"), encode({"$user": 1}), encode("$ in a text"), encode({"a": "$5"})]
    seen = []
    found = decode_each(contents, others=lambda content: seen.append(content) or decode(content))
    assert list(found) == [[1], "text", {"$user": 1}, "$ in a text", {"a": "$5"}]
    assert [each.kind for each in seen] == ["text", "json", "text"]


@given(VALUES)
def test_a_value_keeps_the_order_of_its_keys_on_request(value):
    restored = decode(encode(value, keep_order=True))
    assert exact(restored) == exact(value)
    if type(value) is dict:
        assert [exact(key) for key in restored] == [exact(key) for key in value]


@given(VALUES, st.randoms(use_true_random=False))
def test_equal_values_have_equal_bytes(value, rng):
    assert encode(shuffled(value, rng)) == encode(value)


def shuffled(value, rng):
    if type(value) in (list, tuple):
        return type(value)(shuffled(item, rng) for item in value)
    if type(value) is dict:
        return {key: shuffled(item, rng) for key, item in rng.sample(list(value.items()), len(value))}
    if type(value) in (set, frozenset):
        return type(value)(rng.sample(list(value), len(value)))
    return value


@given(VALUES)
def test_encoding_does_not_modify_the_value(value):
    before = copy.deepcopy(value)
    encode(value)
    assert exact(value) == exact(before)


@given(PLAIN.filter(lambda value: type(value) is not str))
def test_json_is_canonical_and_any_json_reader_reads_it(value):
    data = encode_json(value)
    assert data == orjson.dumps(orjson.loads(data), option=orjson.OPT_SORT_KEYS)
    if b'{"$' not in data:
        assert exact(json.loads(data)) == exact(value)


def test_the_stored_encodings_are_unchanged():
    # On disk in every store: a change here needs a way to read the old form.
    forms = {
        (1, 2): b'{"$tuple":[1,2]}',
        2**64: b'{"$int":"0x10000000000000000"}',
        math.inf: b'{"$float":"inf"}',
        frozenset({2, 1}): b'{"$frozenset":[1,2]}',
        Decimal("1.10"): b'{"$decimal":"1.10"}',
        UUID(int=1): b'{"$uuid":"00000000-0000-0000-0000-000000000001"}',
        datetime.fromisoformat("2026-01-02T03:04:05.000006"): b'{"$datetime":"2026-01-02T03:04:05.000006"}',
        datetime(2026, 1, 2, tzinfo=UTC): b'{"$datetime":"2026-01-02T00:00:00+00:00"}',
        date(2026, 1, 2): b'{"$date":"2026-01-02"}',
        datetime.fromisoformat("2026-01-03").replace(fold=1): b'{"$datetime":["2026-01-03T00:00:00",1]}',
        time(1, 2, 3): b'{"$time":"01:02:03"}',
        timedelta(days=-1, seconds=2, microseconds=3): b'{"$timedelta":[-1,2,3]}',
    }
    assert {value: encode(value).data for value in forms} == forms
    assert encode([b"\0\xff"]).data == b'[{"$bytes":"AP8="}]'
    assert encode({2: 1, "a": 0}).data == b'{"$dict":[["a",0],[2,1]]}'
    assert encode({"$x": 1}).data == b'{"$$x":1}'
    assert encode(["\ud800\\"]).data == rb'[{"$str":"\\ud800\\\\"}]'
    assert encode({"b": 1, "a": "é"}).data == '{"a":"é","b":1}'.encode()
    assert encode({"b": 1, "a": 2}, keep_order=True).data == b'{"b":1,"a":2}'


def test_text_and_bytes_are_stored_as_they_are():
    assert encode("é") == Content("text", "é".encode())
    assert encode(b"\0\xff") == Content("bytes", b"\0\xff")
    assert encode(bytearray(b"ab")) == encode(memoryview(b"ab")) == Content("bytes", b"ab")
    assert decode(encode([bytearray(b"ab"), memoryview(b"cd")])) == [b"ab", b"cd"]


def test_text_content_is_always_utf_8():
    assert encode("\ud800").kind == "json"
    assert decode(encode("\ud800")) == "\ud800"


def test_an_offset_is_kept_and_so_is_a_zone():
    berlin = ZoneInfo("Europe/Berlin")
    moments = [
        datetime(2026, 7, 1, 12, tzinfo=berlin),
        datetime(2026, 10, 25, 2, 30, tzinfo=berlin),  # the first of two
        datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=1),
        datetime(2026, 3, 29, 2, 30, tzinfo=berlin),  # no clock ever said so
        datetime(1893, 1, 1, tzinfo=berlin),
        time(1, 30, tzinfo=berlin),
    ]
    for moment in moments:
        back = decode(encode(moment))
        assert (back, back.tzinfo, back.fold) == (moment, berlin, moment.fold)
        assert back.isoformat() == moment.isoformat()
    assert decode(encode(datetime(2026, 1, 31, tzinfo=berlin))) + timedelta(days=150) == datetime(
        2026, 6, 30, tzinfo=berlin
    )


def test_a_zone_that_this_machine_does_not_know_becomes_its_offset():
    stored = Content("json", b'{"$datetime":["2026-07-01T12:00:00+02:00",0,"Atlantis/Capital"]}')
    assert decode(stored).isoformat() == "2026-07-01T12:00:00+02:00"
    for name in ("../../etc/passwd", "/etc/passwd", "", "a\u0000b"):
        odd = Content("json", b'{"$datetime":["2026-07-01T12:00:00+02:00",0,%s]}' % json.dumps(name).encode())
        assert decode(odd).utcoffset() == timedelta(hours=2)


def test_the_moment_is_kept_when_the_rules_of_a_zone_have_changed():
    stored = Content("json", b'{"$datetime":["2026-07-01T12:00:00+03:00",0,"Europe/Berlin"]}')
    assert decode(stored).isoformat() == "2026-07-01T11:00:00+02:00"


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - the shape that must not pass for a tuple


class Label(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value, where",
    [
        (
            {"state": {"todos": [1, 2, 3, {"when": object()}]}},
            "$.state.todos[3].when: builtins.object has no",
        ),
        ([Point(1)], "$[0]: "),
        ({"a b": Colour.RED}, "$['a b']: "),
        ({Colour.RED: 1}, "$[<Colour.RED: 'red'>]: "),
        ([Level.HIGH], "$[0]: "),
        ([True, Label("x")], "$[1]: "),
        ([Pair(1, 2)], "$[0]: "),
        (OrderedDict(a=1), "$: collections.OrderedDict has no safe encoding"),
        ({"z": 1 + 2j}, "$.z: builtins.complex"),
        ([{1, (2, Colour.RED)}], "$[0]["),
        ((1, [lambda: 1]), "$[1][0]: builtins.function"),
        ({"t": time(1, tzinfo=timezone(timedelta(microseconds=1)))}, "$.t: the codec of time raised"),
        (
            {"t": datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1)))},
            "$.t: the codec of datetime",
        ),
        ({1: {"a": object}}, "$[1].a: builtins.type"),
    ],
)
def test_the_error_about_a_value_without_a_safe_encoding_says_where_it_is_and_what_to_do(value, where):
    with pytest.raises(Unencodable) as raised:
        encode(value)
    assert str(raised.value).startswith("cannot store " + where.split(":")[0])
    assert where in str(raised.value)


def nested(depth, wrap=lambda inner: [inner]):
    value = wrap(1)
    for _ in range(depth - 1):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["list", "dict"])
def test_values_may_nest_200_levels_and_no_more(wrap):
    assert decode(encode(nested(200, wrap))) == nested(200, wrap)
    with pytest.raises(Unencodable, match="deeper than 200"):
        encode(nested(201, wrap))


@pytest.mark.parametrize("depth", [100, 101, 5_000, 100_000])
def test_tagged_values_that_nest_too_deeply_are_rejected(depth):
    value = nested(depth, lambda inner: (inner,))
    if depth == 100:
        assert decode(encode(value)) == value
    else:
        with pytest.raises(Unencodable, match="deeper than 200"):
            encode(value)


def test_a_value_that_contains_itself_is_rejected():
    ring = [1]
    ring += [ring, ring]
    mapping = {"a": ring}
    mapping["self"] = mapping
    for value in (ring, mapping, (ring,), {1: ring}):
        with pytest.raises(Unencodable, match="contains itself") as raised:
            encode(value)
        assert len(str(raised.value)) < 300


def test_the_error_near_the_recursion_limit_is_of_the_same_class():
    def deep_in(frames):
        return encode(nested(150, lambda inner: [inner, ()])) if frames == 0 else deep_in(frames - 1)

    room = sys.getrecursionlimit() - len(list(frames_now())) - 80
    with pytest.raises(Unencodable, match="call stack"):
        deep_in(room)


def frames_now():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_a_registered_type_comes_back_as_itself():
    codecs = Codecs()
    codecs.register(Point, "point", lambda point: {"x": point.x}, lambda plain: Point(**plain))
    codecs.register(Colour, "colour", lambda colour: colour.value, Colour)
    codecs.register(Pair, "pair", list, lambda plain: Pair(*plain))
    value = {"a": Point((1, Decimal(2))), "b": [Colour.RED, Pair(Colour.RED, None)], 3: {Colour.RED}}
    assert exact(codecs.decode(codecs.encode(value))) == exact(value)
    assert codecs.encode(Point(1)).data == b'{"$point":{"x":1}}'
    with pytest.raises(Unencodable):
        encode(Point(1))


@pytest.mark.parametrize(
    "kind, tag, problem",
    [
        (Point, "", "invalid codec tag"),
        (Point, "$point", "invalid codec tag"),
        (Point, "decimal", "already exists"),
        (Point, "dict", "already exists"),
        (Decimal, "money", "already has an encoding"),
        (str, "string", "already has an encoding"),
        (set, "bag", "already has an encoding"),
    ],
)
def test_a_codec_cannot_take_the_type_or_tag_of_another(kind, tag, problem):
    with pytest.raises(InvalidInput, match=problem):
        Codecs().register(kind, tag, str, kind)


def test_an_unknown_tag_stays_visible_data():
    assert decode_json(b'[{"$gone":{"$tuple":[1]}}]') == [{"$gone": (1,)}]
    value = decode_json(b'{"$gone":1}')
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"nul", b"\xff", b'"\xff"', b"[1,]", b'"\\ud800"', b"NaN", b"[" * 100_000],
)
def test_invalid_json_is_corrupt(data):
    with pytest.raises(Corrupt):
        decode_json(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"$decimal":"x"}',
        b'{"$decimal":[]}',
        b'{"$datetime":1}',
        b'{"$timedelta":[1]}',
        b'{"$timedelta":[9999999999,0,0]}',
        b'{"$set":[[]]}',
        b'{"$dict":[[1]]}',
        b'{"$bytes":"?"}',
        b'{"$int":"zz"}',
        b'{"$uuid":""}',
        b'{"$str":1}',
    ],
)
def test_a_tag_with_an_impossible_value_is_corrupt(data):
    with pytest.raises(Corrupt, match=r"stored \$"):
        decode_json(b"[" + data + b"]")


@given(st.binary(max_size=60) | VALUES.map(lambda value: encode([value]).data))
def test_decoding_any_bytes_returns_a_value_or_raises_corrupt(data):
    cut = data[: random.Random(data).randint(0, len(data))]
    for each in (data, cut):
        with suppress(Corrupt):
            decode_json(each)
        with suppress(Corrupt):
            decode(Content("text", each))


def test_extreme_nesting_is_decoded_without_recursion():
    data = b'{"$gone":' * 1000 + b"1" + b"}" * 1000
    value = decode_json(data)
    for _ in range(1000):
        value = value["$gone"]
    assert value == 1


def test_a_tree_is_not_a_value():
    with pytest.raises(InvalidInput, match="decode_tree"):
        decode(Content("tree", b""))
