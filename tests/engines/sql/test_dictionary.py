"""Data compressed with a store's dictionary is read back as it was given, by every process."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering import api
from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft, Event
from treering.core.query import EventQuery
from treering.engines.sql.dictionary import CODES, Dictionary, decode_phrases, encode_phrases
from treering.engines.sqlite import open_sqlite
from treering.errors import Corrupt, InvalidInput

PHRASES = ('{"attributes":{"request.id":"', '{"attributes":{"', ',"provider":"', '"},"size":')
DICTIONARY = Dictionary(PHRASES)
SPAN = b'{"attributes":{"request.id":"r1"},"size":662,"provider":"oak"}'
SCOPE = "/thread/a"


def test_a_phrase_takes_one_byte():
    assert DICTIONARY.compress(SPAN) == b'\x01r1\x04662\x03oak"}'
    assert DICTIONARY.expand(DICTIONARY.compress(SPAN)) == SPAN


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([*map(str.encode, PHRASES), b"\n", b"\x00", b"x", b"\x05"])).map(b"".join)
)
@pytest.mark.parametrize("dictionary", [DICTIONARY, Dictionary()], ids=["phrases", "empty"])
def test_any_data_is_read_back(dictionary, data):
    assert dictionary.expand(dictionary.compress(data)) == data


@given(
    st.lists(
        st.sampled_from([SPAN, b"", b"{}", b"\x00raw\x05", b'{"attributes":{"a":1}}']).map(
            DICTIONARY.compress
        )
    )
)
def test_many_are_expanded_as_one_by_one(many):
    assert DICTIONARY.expand_all(many) == list(map(DICTIONARY.expand, many))
    assert DICTIONARY.expand_all([*many, None]) is None


@given(st.lists(st.sampled_from([SPAN, b'"x":1,', b"word "]), min_size=5, max_size=12).map(b"".join))
def test_long_data_is_compressed_as_short_data_is(data):
    compressed = DICTIONARY.compress(data)
    assert DICTIONARY.expand(compressed) == data
    assert len(compressed) == len(data) - data.count(SPAN) * (len(SPAN) - len(DICTIONARY.compress(SPAN)))


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.integers(-9, 9)))
def test_json_never_gets_longer(value):
    data = orjson.dumps(value)
    assert len(DICTIONARY.compress(data)) <= len(data)


@pytest.mark.parametrize("code", CODES)
def test_a_code_does_not_occur_in_json(code):
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(b'{"a":1,' + bytes([code]) + b'"b":2}')
    assert code not in orjson.dumps({"text": chr(code)})


def test_an_unknown_code_is_corrupt():
    with pytest.raises(Corrupt, match="code 31"):
        DICTIONARY.expand(b'{"a":\x1f1}')


def test_phrases_are_limited():
    with pytest.raises(InvalidInput, match="at most 28"):
        Dictionary(["x"] * 29)


@given(st.lists(st.text(max_size=9), max_size=9))
def test_phrases_are_stored_as_json(phrases):
    assert decode_phrases(encode_phrases(phrases)) == phrases


@pytest.mark.parametrize("stored", ["", "{}", "[1]"])
def test_a_damaged_dictionary_is_corrupt(stored):
    with pytest.raises(Corrupt, match="dictionary"):
        decode_phrases(stored)


def test_a_store_keeps_the_dictionary_that_it_was_created_with(tmp_path):
    def opened(phrases):
        return open_sqlite(tmp_path, blobs=FolderBlobs(tmp_path / "blobs"), phrases=phrases)

    engine = opened(PHRASES)
    draft = Draft("default")
    draft.event(Event(id="e1", kind="step", ts_us=1, scope=SCOPE, data=SPAN))
    engine.commit(draft.batch())
    engine.close()
    for phrases in ((), PHRASES[::-1], ("other",)):
        again = opened(phrases)
        with again.sql_connection() as connection:
            ((stored,),) = connection.execute("SELECT data FROM event").fetchall()
        connection.close()
        assert stored == DICTIONARY.compress(SPAN)
        assert [each.event.data for each in again.scan("default", EventQuery()).records] == [SPAN]
        assert again.dictionary.compress(SPAN) == stored
        again.close()


def test_the_phrases_of_new_stores_fit():
    phrases = api._phrases()
    assert len(set(phrases)) == len(phrases) <= len(CODES)
    assert (
        Dictionary(phrases).expand(b"".join(CODES[at : at + 1] for at in range(len(phrases))))
        == "".join(phrases).encode()
    )


def test_the_data_of_a_span_and_of_a_graph_step_shrinks():
    dictionary = Dictionary(api._phrases())
    span = (
        b'{"attributes":{"gen_ai.response.id":"resp_1"},"input":0,"input_size":662,'
        b'"priced_by":"openai/gpt-5","provider":"openai"}'
    )
    step = (
        b'{"parent":"v6g231b5gasbjz21ej3c","lists":{"messages":["01m7kzv62d6amvgjnnne5qgtct",526]},'
        b'"metadata":{"source":"loop","step":500,"parents":{}},"graph":["1f1e2483",0]}'
    )
    assert len(dictionary.compress(span)) == len(b"_resp_1_662_gpt-5_")
    assert len(dictionary.compress(step)) == len(
        b'{"parent":"v6g231b5gasbjz21ej3c_01m7kzv62d6amvgjnnne5qgtct",526_500_1f1e2483",0]}'
    )
