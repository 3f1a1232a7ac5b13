"""A row of the journal says nothing twice, and reads as what was written; so do the rows of before.

Data compressed with a store's dictionary is read back as it was given, by every process.
"""

from __future__ import annotations

import sqlite3

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering import api
from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft, Event, Listing
from treering.core.content import Address, Content
from treering.core.ids import Scope, namespace_prefix, thread_of_scope, thread_scope_of
from treering.core.query import Erasure, EventQuery, ListQuery, SumQuery, collecting
from treering.engines.sql import rows
from treering.engines.sql.rows import (
    CODES,
    Dictionary,
    decode_phrases,
    encode_phrases,
    number_of_key,
    run_key,
    run_number,
)
from treering.engines.sqlite import open_sqlite
from treering.errors import Corrupt, InvalidInput, TreeringError
from treering.testing import batches

SCOPE = str(Scope("user/1", "thread", "a/b"))
THREAD = namespace_prefix("user/1") + "a/b"


def written(store, **fields) -> Event:
    """An event that was committed with two contents, the first as its body."""
    draft = Draft(store.space)
    body = draft.put(Content("text", b"out"), scope=SCOPE)
    draft.put(Content("text", b"in"), scope=SCOPE)
    fields.setdefault("links", (Address(body.replace("0.0", "0.1")),))
    event = Event(**{"id": "e", "kind": "span.tool", "ts_us": 5, "scope": SCOPE, "body": body} | fields)
    draft.event(event)
    store.engine.commit(draft.batch())
    return event


@pytest.mark.parametrize("thread", ["/t", "user%2F1/a/b", "a/", "x/100%/y"])
def test_a_thread_and_its_scope_name_each_other(thread):
    assert thread_of_scope(thread_scope_of(thread)) == thread


def test_a_name_that_is_no_thread_has_no_scope():
    assert thread_scope_of("plain") is None
    assert thread_of_scope("/run/r") is None


def test_what_a_row_says_already_is_left_out_and_comes_back(tmp_path):
    with treering.open(tmp_path / "store") as store:
        event = written(store, span="e", thread=THREAD, run="r")
        (record,) = store.engine.scan(store.space, EventQuery()).records
    stored = stored_row(tmp_path)
    assert (stored["span"], stored["thread"], stored["body"], stored["links"]) == ("", "", "0.0", "0.1")
    assert record.event == event


@pytest.mark.parametrize(
    "fields",
    [
        {"span": "other", "thread": "/elsewhere"},
        {"thread": "plain"},
        {"links": ()},
        {"scope": str(Scope("", "run", "r")), "thread": THREAD, "run": "r"},
    ],
)
def test_what_a_row_does_not_say_already_is_spelt_out(tmp_path, fields):
    with treering.open(tmp_path / "store") as store:
        event = written(store, **fields)
        (record,) = store.engine.scan(store.space, EventQuery()).records
    assert record.event == event
    stored = stored_row(tmp_path)
    assert stored["span"] == fields.get("span")
    assert stored["thread"] == fields.get("thread")


def test_several_links_are_spelt_out(tmp_path):
    with treering.open(tmp_path / "store") as store:
        own = written(store).links[0]
        (record,) = store.engine.scan(store.space, EventQuery()).records
        other = written(store, id="f", links=(own, record.event.body))
        found = {each.event.id: each.event for each in store.engine.scan(store.space, EventQuery()).records}
    assert found["f"] == other


def test_rows_of_before_are_found_and_read_beside_the_new_ones(tmp_path):
    with treering.open(tmp_path / "store") as store:
        first = written(store, id="a", span="a", thread=THREAD)
    with sqlite3.connect(tmp_path / "store" / "treering.db") as connection:
        connection.execute(
            "UPDATE event SET span = ?, thread = ?, links = ?", (first.span, first.thread, first.links[0])
        )
    connection.close()
    with treering.open(tmp_path / "store") as store:
        second = written(store, id="b", span="b", thread=THREAD)
        for query in (EventQuery(thread=THREAD), EventQuery(thread=THREAD, kinds=("span.tool",))):
            page = store.engine.scan(store.space, query, limit=1)
            rest = store.engine.scan(store.space, query, after=page.cursor)
            assert [each.event for each in (*page.records, *rest.records)] == [first, second]
        newest = EventQuery(thread=THREAD, newest_first=True)
        assert [each.event for each in store.engine.scan(store.space, newest).records] == [second, first]
        for event in (first, second):
            (found,) = store.engine.scan(store.space, EventQuery(span=event.id)).records
            assert found.event == event
        assert store.verify().problems == ()


def stored_row(folder) -> dict:
    """The newest row as it lies in the file."""
    connection = sqlite3.connect(folder / "store" / "treering.db")
    connection.row_factory = sqlite3.Row
    found = dict(connection.execute("SELECT * FROM event ORDER BY seq DESC").fetchone())
    connection.close()
    return found


@pytest.mark.parametrize(
    "id, parent, stored",
    [
        ("abc.1", "abc.2", "\x1f2"),
        ("abc.1", "abd.2", "abd.2"),
        ("abc.1", ".2", ".2"),
        ("abc.1", "abc", "abc"),
        ("abc", "abc.2", "abc.2"),
        (".1", ".2", "\x1f2"),
    ],
)
def test_a_parent_leaves_out_what_it_begins_with_like_its_row(tmp_path, id, parent, stored):
    with treering.open(tmp_path / "store") as store:
        event = written(store, id=id, parent=parent)
        (record,) = store.engine.scan(store.space, EventQuery()).records
    assert record.event == event
    assert stored_row(tmp_path)["parent"] == stored


def test_a_run_is_a_number_and_is_read_and_found_by_its_name(tmp_path):
    with treering.open(tmp_path / "store") as store:
        event = written(store, run="r", agent="a")
        assert [each.event for each in store.engine.scan(store.space, EventQuery(run="r")).records] == [event]
        assert not store.engine.scan(store.space, EventQuery(run="other")).records
        (total,) = store.engine.sums(store.space, SumQuery(grain="run", by=("key", "agent")))
    assert total.group == ("r", "a")
    assert stored_row(tmp_path)["run"] == run_number("r")
    assert number_of_key(run_key("r")) == run_number("r")


def test_a_damaged_key_of_a_run_is_no_number():
    assert number_of_key("é") == 0


def test_a_run_that_has_the_number_of_another_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "run_number", lambda _: 7)
    with treering.open(tmp_path / "store") as store:
        written(store, run="r")
        with pytest.raises(TreeringError):
            written(store, id="f", run="other")
        (record,) = store.engine.scan(store.space, EventQuery()).records
        assert record.event.run == "r"
        written(store, id="g", run="r")


def test_the_name_of_a_run_goes_with_its_last_event(tmp_path):
    with treering.open(tmp_path / "store") as store:
        written(store, run="r")
        written(store, id="f", run="stays", scope="/thread/other")
        store.engine.erase(store.space, Erasure(scopes=(SCOPE,)))
    with sqlite3.connect(tmp_path / "store" / "treering.db") as database:
        assert database.execute("SELECT name FROM run").fetchall() == [("stays",)]
    database.close()


def test_verify_tells_of_a_run_whose_name_is_lost(tmp_path):
    with treering.open(tmp_path / "store") as store:
        written(store, run="r")
    with sqlite3.connect(tmp_path / "store" / "treering.db") as connection:
        connection.execute("DELETE FROM run")
    connection.close()
    with treering.open(tmp_path / "store") as store:
        found = [problem for problem in store.verify().problems if problem.kind == "dangling"]
        assert [problem.where for problem in found] == ["event 'e'"]


def test_a_damaged_parent_is_noticed_when_its_row_is_read(tmp_path):
    with treering.open(tmp_path / "store") as store:
        written(store, parent="p")
    with sqlite3.connect(tmp_path / "store" / "treering.db") as connection:
        connection.execute("UPDATE event SET parent = x'ff'")
    connection.close()
    with treering.open(tmp_path / "store") as store, pytest.raises(Corrupt, match="event 'e'"):
        store.engine.scan(store.space, EventQuery())


def test_a_damaged_ref_is_named_and_hides_no_others(tmp_path):
    with treering.open(tmp_path / "store") as store:
        for number in range(5):
            draft = store.draft()
            listing = Listing(list="l", namespace="n")
            draft.set_ref(f"r{number}", b"1", scope="s", listing=listing)
            store.commit(draft)
    with sqlite3.connect(tmp_path / "store" / "treering.db") as connection:
        connection.execute("UPDATE ref SET value = x'32' WHERE name IN ('r1', 'r2')")
    connection.close()
    with treering.open(tmp_path / "store") as store, collecting() as unreadable:
        engine, query = store.engine, ListQuery(list="l", namespace="n")
        assert [ref.name for ref in engine.scan_refs(store.space, "", limit=2)] == ["r0", "r3"]
        page = engine.list_refs(store.space, query, limit=3)
        assert [ref.name for ref in page.refs] == ["r4", "r3"]
        rest = engine.list_refs(store.space, query, after=page.cursor, limit=3)
        assert [ref.name for ref in rest.refs] == ["r0"]
        assert unreadable.keys() == {"r1", "r2"}
        with pytest.raises(Corrupt, match="ref 'r1'"):
            engine.refs(store.space, ["r1"])
        with pytest.raises(Corrupt, match="ref 'r1'"):
            store.commit(batches.set_ref(store.space, "r1", b"3", expect=1))


PHRASES = ('{"attributes":{"request.id":"', '{"attributes":{"', ',"provider":"', '"},"size":')
DICTIONARY = Dictionary(PHRASES)
SPAN = b'{"attributes":{"request.id":"r1"},"size":662,"provider":"oak"}'


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
        return open_sqlite(tmp_path, blobs=FolderBlobs(tmp_path / "blobs"), phrases=lambda: phrases)

    engine = opened(PHRASES)
    draft = Draft("default")
    draft.event(Event(id="e1", kind="step", ts_us=1, scope="/thread/a", data=SPAN))
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
