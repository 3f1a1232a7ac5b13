"""Data without its usual words reads as what was given, whatever it is."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.engines.sql import dictionary
from treering.engines.sql.dictionary import compress, expand, expand_all

SPAN = (
    b'{"attributes":{"gen_ai.response.id":"resp_1"},"input":0,"input_size":662,'
    b'"priced_by":"openai/gpt-5","provider":"openai"}'
)


def test_the_usual_words_of_a_span_take_a_byte_each():
    assert len(compress(SPAN)) == len(b"_resp_1_662_gpt-5_")
    assert expand(compress(SPAN)) == SPAN


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([*dictionary._PIECES, b"\n", b"\x00", b"x", b"\x05"])).map(b"".join)
)
def test_any_data_comes_back(data):
    assert expand(compress(data)) == data
    assert expand(compress(data, is_of_run=False)) == data


@given(st.lists(st.sampled_from([SPAN, b"", b"{}", b"\x00raw\x05", b'{"attributes":{"a":1}}']).map(compress)))
def test_many_are_filled_as_one_by_one(many):
    assert expand_all(many) == list(map(expand, many))
    assert expand_all([*many, None]) is None


@given(st.lists(st.sampled_from([SPAN, b'"x":1,', b"word "]), min_size=5, max_size=12).map(b"".join))
def test_long_data_is_thinned_as_short_data_is(data):
    thin = compress(data)
    assert expand(thin) == data
    assert len(thin) == len(data) - data.count(SPAN) * (len(SPAN) - len(compress(SPAN)))


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.integers(-9, 9)))
def test_json_is_never_longer(value):
    data = orjson.dumps(value)
    assert len(compress(data)) <= len(data)
    assert expand(data) == data  # as an older row has it


@pytest.mark.parametrize("code", dictionary._CODES)
def test_a_code_is_no_character_of_json(code):
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(b'{"a":1,' + bytes([code]) + b'"b":2}')
    assert code not in orjson.dumps({"text": chr(code)})


def test_the_list_of_pieces_only_grows():
    assert dictionary._PIECES[:3] == (
        b'{"attributes":{"gen_ai.response.id":"',
        b'{"attributes":{"gen_ai.tool.call.id":"',
        b'{"attributes":{"gen_ai.',
    )
    assert dictionary._PIECES[dictionary._GRAPHS] == b'","lists":{"messages":["'
    assert len(dictionary._PIECES) == len(dictionary._CODES)


STEP = (
    b'{"parent":"v6g231b5gasbjz21ej3c","lists":{"messages":["01m7kzv62d6amvgjnnne5qgtct",526]},'
    b'"metadata":{"source":"loop","step":500,"parents":{}},"graph":["1f1e2483",0]}'
)


def test_the_usual_words_of_a_graph_take_a_byte_each():
    thin = compress(STEP, is_of_run=False)
    assert len(thin) == len(
        b'{"parent":"v6g231b5gasbjz21ej3c_01m7kzv62d6amvgjnnne5qgtct",526_500_1f1e2483",0]}'
    )
    assert expand(thin) == STEP
    assert compress(STEP) == STEP
