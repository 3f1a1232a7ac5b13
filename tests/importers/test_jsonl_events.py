"""Events that views and adapters keep with a thread: exported and imported with it, and lies refused."""

from __future__ import annotations

import json

import pytest

from tests.importers.jsonl_histories import bring, exported
from treering.core.batch import Event, Usage
from treering.core.content import list_address
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import thread_scope
from treering.core.query import EventQuery
from treering.errors import InvalidInput
from treering.importers.jsonl_export import export_jsonl


class TestOtherEvents:
    """What views and adapters keep with a thread comes along, with its content."""

    @pytest.fixture
    def noted(self, source):
        thread = source.thread("support/alice")
        scope = thread_scope("support/alice", "")
        draft = source.draft()
        draft.put(encode("someone else's"), scope="/other/x")
        skipped = draft.put(encode("not linked"), scope=scope)
        small, large = draft.put(encode({"a": 1}), scope=scope), draft.put(encode("x" * 9000), scope=scope)
        blob = draft.put(encode(b"\x00\x01"), scope=scope)
        draft.event(
            Event(
                id="note-1",
                kind="note",
                ts_us=1_700_000_000_000_000,
                scope=scope,
                agent="planner",
                usage=Usage(input=3, output=4),
                cost_nanos=-5,
                data=encode_json({"where": [small, large], "text": f"not {small} itself"}),
                body=blob,
                links=(small, large),
            )
        )
        source.commit(draft)
        assert skipped.endswith(".0")
        listing = source.draft()
        listing.event(
            Event(
                id="note-2",
                kind="odd",
                ts_us=1,
                scope=scope,
                links=(list_address(thread.head.record.lists["messages"].list),),
            )
        )
        source.commit(listing)
        return source

    def read(self, store):
        query = EventQuery(kinds=("note",), scope=thread_scope("support/alice", ""))
        (record,) = store.engine.scan(store.space, query).records
        event = record.event
        data = decode_json(event.data)
        contents = store.engine.get(store.space, [*data["where"], *event.links, event.body])
        result = (event.id, event.ts_us, event.agent, event.usage, event.cost_nanos)
        return result, [decode(each) for each in contents]

    def test_they_come_back_and_find_their_content(self, noted, target):
        assert bring(exported(noted), target)["events"] == (1, 1, 0)
        assert self.read(target) == self.read(noted)
        assert self.read(target)[1] == [{"a": 1}, "x" * 9000, {"a": 1}, "x" * 9000, b"\x00\x01"]
        assert bring(exported(noted), target)["events"] == (1, 0, 1)
        assert target.verify().ok

    def test_one_that_points_elsewhere_is_counted(self, noted):
        report = export_jsonl(noted, noted.threads(), lambda _: None)
        assert (report.events, report.left_out) == (1, {"odd": 1})

    @pytest.mark.parametrize(
        "change",
        [
            {"type": "checkpoint"},
            {"type": "rewind"},
            {"columns": {"shoe": 43}},
            {"columns": {"agent": 43}},
            {"columns": {"usage": {"input": "much"}}},
            {"slots": {}},
            {"objects": []},
            {"links": ["s:another-commit:0.0"]},
            {"body": "nowhere"},
            {"slots": {"s:b:0.0": {"kind": "bytes", "value": "?"}}},
            {"slots": {"s:b:0.0": {"kind": "tree", "value": ""}}},
            {"slots": {"o:b": {"kind": "text", "value": ""}}},
            {"slots": {"s:b:0.999999999": {"kind": "text", "value": ""}}},
            {"at": "never"},
        ],
    )
    def test_a_line_that_lies(self, noted, empty, change):
        lines = exported(noted).splitlines()
        which = next(index for index, line in enumerate(lines) if b'"kind":"event"' in line)
        lines[which] = json.dumps({**json.loads(lines[which]), **change}).encode()
        with pytest.raises(InvalidInput, match=f"line {which + 1}: "):
            bring(b"\n".join(lines), empty, strict=True)
        assert empty.stats().rows["events"] == 0

    def test_a_head_of_something_else(self, noted, empty):
        lines = exported(noted).splitlines()
        head = json.loads(next(line for line in lines if b'"kind":"checkpoint"' in line))["id"]
        lie = {"kind": "head", "name": "chat//telegram_1", "thread": "support/alice", "checkpoint": head}
        lines.insert(-1, json.dumps(lie).encode())
        with pytest.raises(InvalidInput, match="is not the head of a subgraph of thread 'support/alice'"):
            bring(b"\n".join(lines), empty, strict=True)
