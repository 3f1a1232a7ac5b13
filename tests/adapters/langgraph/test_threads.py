"""A LangGraph thread is a treering thread: whatever treering can do with threads, it can do with this one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState

import treering
from tests.adapters.langgraph.scripts import config, put
from treering.adapters.langgraph import TreeringSaver
from treering.errors import InvalidInput


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


def chat(saver, calls=None):
    def answer(state: MessagesState):
        if calls is not None:
            calls.append(len(state["messages"]))
        return {"messages": [AIMessage(f"answer {len(state['messages'])}", id=f"a{len(state['messages'])}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def say(graph, text, thread="alice"):
    return graph.invoke({"messages": [HumanMessage(text, id=text)]}, config(thread))


def texts(messages):
    return [message.content for message in messages]


def test_threads_and_their_checkpoints_are_seen(store):
    graph = chat(TreeringSaver(store))
    say(graph, "one")
    say(graph, "two", "bob/1")
    assert {info.id for info in store.threads()} == {"alice", "bob/1"}
    thread = store.thread("alice")
    checkpoint = thread.load()
    assert checkpoint.messages == [
        {"type": "human", "content": "one", "id": "one"},
        {"type": "ai", "content": "answer 1", "id": "a1"},
    ]
    assert [(each.step, each.note) for each in thread.history()] == [(1, None), (0, None), (-1, "input")]
    assert checkpoint.metadata["source"] == "loop"
    difference = thread.diff(thread.at(0), checkpoint)
    assert [message["content"] for _, message in difference.added] == ["answer 1"]


def test_a_graph_goes_on_from_where_the_thread_was_rewound_to(store):
    calls: list[int] = []
    graph = chat(TreeringSaver(store), calls)
    say(graph, "one")
    say(graph, "two")
    thread = store.thread("alice")
    thread.rewind(1)
    assert texts(graph.get_state(config()).values["messages"]) == ["one", "answer 1"]
    assert texts(say(graph, "other")["messages"]) == ["one", "answer 1", "other", "answer 3"]
    assert texts(chat(TreeringSaver(store)).get_state(config()).values["messages"])[2] == "other"
    assert len(list(thread.history(everything=True))) == 9


def test_what_a_task_wrote_for_a_branch_that_was_left_is_not_replayed(store):
    """langgraph#8443: the writes of the step were used up by a child; a rewind makes the task run again."""
    calls: list[int] = []
    graph = chat(TreeringSaver(store), calls)
    say(graph, "one")
    before = next(each for each in graph.get_state_history(config()) if each.next == ("answer",))
    checkpoint = next(
        each for each in store.thread("alice").history() if each.step == before.metadata["step"]
    )
    store.thread("alice").rewind(checkpoint)
    assert calls == [1]
    state = chat(TreeringSaver(store), calls).get_state(config())
    assert state.next == ("answer",)
    chat(TreeringSaver(store), calls).invoke(None, config())
    assert calls == [1, 1]


def test_a_fork_goes_on_by_itself_and_shares_the_past(store):
    graph = chat(TreeringSaver(store))
    say(graph, "one")
    say(graph, "two")
    rows = store.stats().rows["items"]
    store.thread("alice").fork("bob", at=1)
    assert store.stats().rows["items"] == rows
    assert texts(say(graph, "other", "bob")["messages"]) == ["one", "answer 1", "other", "answer 3"]
    assert texts(graph.get_state(config("alice")).values["messages"]) == [
        "one",
        "answer 1",
        "two",
        "answer 3",
    ]
    history = [texts(each.values.get("messages", [])) for each in graph.get_state_history(config("bob"))]
    assert history[0] == ["one", "answer 1", "other", "answer 3"]
    assert history[-1] == []
    oldest = list(graph.get_state_history(config("bob")))[-2]
    assert texts(graph.get_state(oldest.config).values["messages"]) == ["one"]


def test_a_fork_takes_the_pending_question_along(store):
    from langgraph.types import Command, interrupt

    def ask(state: MessagesState):  # noqa: ARG001
        return {"messages": [AIMessage(interrupt("really?"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=TreeringSaver(store))
    say(graph, "one")
    store.thread("alice").fork("bob")
    assert graph.get_state(config("bob")).tasks[0].interrupts[0].value == "really?"
    assert texts(graph.invoke(Command(resume="no"), config("bob"))["messages"]) == ["one", "no"]
    assert texts(graph.invoke(Command(resume="yes"), config("alice"))["messages"]) == ["one", "yes"]


def test_any_string_is_a_thread_id(store):
    graph = chat(TreeringSaver(store))
    names = ["", " ", "a/b", "a%2Fb", "é ✓", "x" * 1000, "line\nbreak", "~" + "0" * 64, "__proto__"]
    for name in names:
        say(graph, "hi " + str(len(name)), name)
    for name in names:
        assert texts(graph.get_state(config(name)).values["messages"])[0] == "hi " + str(len(name))
    found = {each.config["configurable"]["thread_id"] for each in TreeringSaver(store).list(None)}
    assert found == set(names)


def test_a_fork_of_an_oddly_named_thread_has_a_name_of_its_own(store):
    say(chat(TreeringSaver(store)), "hi", "line\nbreak")
    (info,) = store.threads()
    store.thread(info.id).fork("plain")
    found = {each.config["configurable"]["thread_id"] for each in TreeringSaver(store).list(None)}
    assert found == {"line\nbreak", "plain"}


def test_a_checkpoint_that_no_graph_saved_is_not_gone_on_from(store):
    graph = chat(TreeringSaver(store))
    say(graph, "one")
    store.thread("alice").append({"role": "user", "content": "by hand"})
    with pytest.raises(InvalidInput, match="not saved by a graph"):
        graph.get_state(config())
    store.thread("alice").rewind(1)
    assert texts(say(graph, "two")["messages"]) == ["one", "answer 1", "two", "answer 3"]


@given(one=st.text(max_size=20), other=st.text(max_size=20), space=st.sampled_from(["", "u1", "u/2"]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_namespace_sees_nothing_of_another(one, other, space):
    with treering.open("memory:") as store:
        say(chat(TreeringSaver(store, namespace=space)), "secret", one)
        for namespace in {"", "u1", "u/2", "u"} - {space}:
            stranger = TreeringSaver(store, namespace=namespace)
            assert stranger.get_tuple(config(one)) is None
            assert stranger.get_tuple(config(other)) is None
            assert list(stranger.list(None)) == []
            stranger.delete_thread(one)
            stranger.delete_for_runs(["secret"])
        owner = TreeringSaver(store, namespace=space)
        assert texts(owner.get(config(one))["channel_values"]["messages"])[0] == "secret"
        with pytest.raises(InvalidInput):
            owner.prune([one], strategy="everything")


def test_a_store_that_was_given_stays_open_and_one_that_was_opened_is_closed(store, tmp_path):
    with TreeringSaver(store) as saver:
        say(chat(saver), "one")
    assert [info.id for info in store.threads()] == ["alice"]
    with TreeringSaver(tmp_path / "another") as saver:
        say(chat(saver), "one")
        opened = saver.store
    with pytest.raises(treering.errors.Closed):
        opened.thread("alice").load()


@pytest.mark.parametrize("own", [7, "text", {}, {"id": "x"}, ["list"]])
def test_metadata_of_a_users_own_is_not_taken_for_a_graphs(own):
    with treering.open("memory:") as store:
        saver = TreeringSaver(store)
        thread = store.thread("plain")
        thread.append("a", metadata={"_graph": own})
        thread.append("b", metadata={"_graph": own})
        put(saver, {"x": 1})
        assert [each.config["configurable"]["thread_id"] for each in saver.list(None)] == ["alice"]
        thread.fork("fork").rewind(0)
        thread.rewind(0)
        assert store.thread("fork").load().messages == ["a"]
        store.gc(keep=treering.Keep(last=1))
        thread.delete(cascade=True)
        assert store.verify().ok
