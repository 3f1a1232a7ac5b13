"""What is stored of values, versions and writes: all of it, once, and never as code."""

from __future__ import annotations

import dataclasses
import random
from datetime import date

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Send

import treering
from tests.adapters.langgraph.scripts import config, put
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.langgraph.values import Packed, ValueCodec
from treering.errors import InvalidInput, StoreFull, Unencodable


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("version", [7, "7.5", 7.5, 2**70, float("inf"), (1, 2), None])
@pytest.mark.parametrize("name", ["x", "$decimal", "a lone \ud800"])
def test_odd_names_and_versions_come_back_as_they_were(store, version, name):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {name: 1, "branch:to:x": True}
    checkpoint["channel_versions"] = {name: version}
    checkpoint["versions_seen"] = {name: {name: version}}
    metadata = {"step": 3, name: version, "parents": {name: "p"}}
    TreeringSaver(store).put(config(checkpoint_ns=""), checkpoint, metadata, {name: version})
    found = TreeringSaver(store).get_tuple(config())
    for key in ("channel_values", "channel_versions", "versions_seen"):
        assert found.checkpoint[key] == checkpoint[key], key
    assert found.metadata == metadata
    assert TreeringSaver(store).metadata(config()) == [(checkpoint["id"], metadata)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"updated_channels": None},
        {"updated_channels": [], "pending_sends": []},
        {"pending_sends": [Send("a", {"x": [1, 2]})]},
        {"of_a_later_langgraph": {"a": [date(2026, 1, 2)]}, "pending_sends": None},
    ],
)
def test_a_checkpoint_has_the_fields_that_it_was_put_with_and_no_others(store, more):
    given = {
        name: value
        for name, value in empty_checkpoint().items()
        if name not in ("pending_sends", "updated_channels")
    }
    TreeringSaver(store).put(config(checkpoint_ns=""), {**given, **more}, {}, {})
    assert TreeringSaver(store).get(config()) == {**given, **more}
    assert next(TreeringSaver(store).list(config())).checkpoint == {**given, **more}


@dataclasses.dataclass
class Basket:
    fruit: list[str]


built: list[str] = []


class Trap:
    """What must never be built from stored data."""

    def __init__(self, text: str = "") -> None:
        built.append(text)
        self.text = text

    def model_dump(self):
        return {"text": self.text}


def test_a_class_that_is_not_allowed_is_neither_stored_nor_built(store):
    with pytest.raises(Unencodable, match=r"test_values\.Trap"):
        put(TreeringSaver(store), {"trap": Trap("sprung")})
    put(TreeringSaver(store, allow=[Basket, Trap]), {"basket": Basket(["apple"]), "trap": Trap("sprung")})
    built.clear()
    with pytest.raises(InvalidInput, match=r"test_values\.Trap"):
        TreeringSaver(store, allow=[Basket]).get(config())
    assert built == []
    widened = TreeringSaver(store).with_allowlist([(Basket.__module__, "Basket"), (Trap.__module__, "Trap")])
    assert widened.get(config())["channel_values"]["basket"] == Basket(["apple"])
    assert built == ["sprung"]


def test_nothing_is_pickled_and_a_stored_pickle_stays_data(store):
    saver = TreeringSaver(store)
    with pytest.raises(TypeError):
        put(saver, {"x": lambda: None})
    checkpoint = store.thread("alice").checkpoint(
        state={"x": Packed("pickle", b"cos\nsystem\n(S'true'\ntR.")}
    )
    graph = {"id": "a", "v": 4, "ts": "", "versions": {"x": 1}, "seen": {}}
    store.thread("bob").checkpoint(state=checkpoint.state, metadata={"_graph": graph})
    loaded = saver.get(config("bob"))["channel_values"]["x"]
    assert loaded == {"form": "pickle", "data": b"cos\nsystem\n(S'true'\ntR."}


def test_a_message_with_an_artifact_is_kept_whole(store):
    saver = TreeringSaver(store, allow=[Basket])
    message = ToolMessage("done", tool_call_id="1", id="t", artifact=Basket(["pear"]))
    where = put(saver, {"messages": [message]})
    message.artifact.fruit.append("plum")
    put(saver, {"messages": [message, AIMessage("ok", id="ok")]}, parent=where)
    kept = [each.checkpoint["channel_values"]["messages"][0].artifact.fruit for each in saver.list(config())]
    assert kept == [["pear", "plum"], ["pear"]]
    assert store.thread("alice").load().messages[0]["content"] == "done"


def test_a_serializer_that_encrypts_is_given_everything(store):
    pytest.importorskip("cryptography")
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    class Reversed:
        def encrypt(self, plaintext):
            return "reversed", plaintext[::-1]

        def decrypt(self, ciphername, ciphertext):  # noqa: ARG002
            return ciphertext[::-1]

    saver = TreeringSaver(store, serde=EncryptedSerializer(Reversed()))
    where = put(saver, {"messages": [HumanMessage("hush", id="1")], "note": "hush"})
    saver.put_writes(where, [("messages", [AIMessage("hush", id="2")]), ("note", "hush")], "task")
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"messages": [HumanMessage("hush", id="1")], "note": "hush"}
    assert [value for _, _, value in found.pending_writes] == [[AIMessage("hush", id="2")], "hush"]
    whole = b"".join(
        content for part in store.engine.export(store.space) for content in [repr(part).encode()]
    )
    assert b"hush" not in whole


@pytest.mark.parametrize("writes", ["with_checkpoint", "durable"])
def test_a_message_is_stored_once_as_a_write_and_in_the_list(store, writes):
    saver = TreeringSaver(store, writes=writes)
    where = put(saver, {"messages": []})
    before = store.stats()
    chance = random.Random(1)
    large = ToolMessage(chance.randbytes(25_000).hex(), tool_call_id="1", id="t")
    small = AIMessage(chance.randbytes(1000).hex(), id="a")
    saver.put_writes(where, [("messages", [small, large])], "task")
    put(saver, {"messages": [small, large]}, parent=where)
    after = store.stats()
    assert after.rows["objects"] == 1
    assert sum(after.bytes.values()) - sum(before.bytes.values()) < 52_000 + 2000 + 1500
    found = list(TreeringSaver(store).list(config()))
    assert found[0].checkpoint["channel_values"]["messages"] == [small, large]
    assert found[1].pending_writes == [("task", "messages", [small, large])]
    assert store.verify().ok


@pytest.mark.parametrize("task", ["task", "a lone \ud800"])
def test_small_values_of_writes_come_back_as_they_were(store, task):
    saver = TreeringSaver(store)
    where = put(saver, {"x": 1})
    given = [None, 2**80, date(2026, 1, 2), {"$date": "no date"}, ("a", 1), float("inf"), "\ud800", b"b", []]
    saver.put_writes(where, [(f"c{index}", value) for index, value in enumerate(given)], task)
    found = TreeringSaver(store).get_tuple(config()).pending_writes
    assert found == [(task, f"c{index}", value) for index, value in enumerate(given)]


def test_held_writes_that_could_not_be_committed_raise_and_are_kept(store, monkeypatch):
    saver = TreeringSaver(store, writes="with_checkpoint")
    where = put(saver, {"x": 1})
    commit = store.engine.commit

    def full(batch):  # noqa: ARG001
        raise StoreFull("the disk is full")

    monkeypatch.setattr(store.engine, "commit", full)
    saver.put_writes(where, [("x", 2)], "task")
    with pytest.raises(StoreFull):
        saver.get_tuple(config())
    monkeypatch.setattr(store.engine, "commit", commit)
    assert saver.get_tuple(config()).pending_writes == [("task", "x", 2)]


def test_lists_of_plain_data_grow_and_change(store):
    saver = TreeringSaver(store)
    items = [{"n": number, "text": "t" * 100} for number in range(60)]
    where = put(saver, {"log": items})
    items = [*items, {"n": True}]
    where = put(saver, {"log": items}, parent=where)
    items[3]["n"] = "changed"
    where = put(saver, {"log": items}, parent=where)
    put(saver, {"log": []}, parent=where)
    states = [each.checkpoint["channel_values"]["log"] for each in TreeringSaver(store).list(config())]
    assert states[0] == []
    assert states[1] == items
    assert states[2][3]["n"] == 3
    assert states[2][-1] == {"n": True}
    assert len(states[3]) == 60


def test_a_long_list_of_plain_data_is_not_encoded_at_every_step(store, monkeypatch):
    saver = TreeringSaver(store)
    items = [{"n": number, "text": "t" * 100} for number in range(500)]
    where = put(saver, {"log": items})
    encode, encoded = ValueCodec.encode, []

    def counted(self, value):
        encoded.append(value)
        return encode(self, value)

    monkeypatch.setattr(ValueCodec, "encode", counted)
    for number in range(10):
        items = [*items, {"n": number}]
        where = put(saver, {"log": items}, parent=where)
    assert encoded == items[-10:]
    items[-1]["n"] = "changed near the end"
    where = put(saver, {"log": items}, parent=where)
    items = [*items[:100], {"n": "another"}, *items[101:]]
    put(saver, {"log": items}, parent=where)
    states = [each.checkpoint["channel_values"]["log"] for each in TreeringSaver(store).list(config())]
    assert states[0] == items
    assert states[1][-1] == {"n": "changed near the end"}
    assert states[2][-1] == {"n": 9}
    assert [len(each) for each in states] == [510, 510, *range(510, 499, -1)]


class Unequal(HumanMessage):
    """A message of someone's own that cannot be compared."""

    def __eq__(self, other):
        raise ValueError("compare me with nothing")

    __hash__ = None


@pytest.mark.parametrize("place", [0, 150, 299])
@pytest.mark.parametrize("content", ["new", [{"type": "text", "text": "new"}]])
def test_a_message_among_many_is_noticed_when_it_is_replaced_or_given_another_content(store, place, content):
    saver = TreeringSaver(store)
    messages = [HumanMessage(f"{number}", id=f"{number}") for number in range(300)]
    where = put(saver, {"messages": list(messages)})
    equal = [each.model_copy() for each in messages]
    where = put(saver, {"messages": equal}, parent=where)
    messages[place].content = "nobody looks at this one any more"
    where = put(saver, {"messages": list(equal)}, parent=where)
    equal[place].content = content
    where = put(saver, {"messages": list(equal)}, parent=where)
    equal[place] = HumanMessage("another", id=f"{place}")
    put(saver, {"messages": list(equal)}, parent=where)
    found = [each.checkpoint["channel_values"]["messages"] for each in TreeringSaver(store).list(config())]
    assert [each[place].content for each in found] == ["another", content, *[f"{place}"] * 3]
    assert {len(each) for each in found} == {300}


def test_items_that_cannot_be_compared_are_stored(store):
    saver = TreeringSaver(store, allow=[Unequal])
    where = put(saver, {"messages": [HumanMessage("a", id="a")]})
    put(saver, {"messages": [Unequal("b", id="b")]}, parent=where)
    (newest, oldest) = saver.list(config())
    assert newest.checkpoint["channel_values"]["messages"][0].content == "b"
    assert oldest.checkpoint["channel_values"]["messages"][0].content == "a"
