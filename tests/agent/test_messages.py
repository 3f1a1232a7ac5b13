"""Tool calls and results, found and written in the three styles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.scripted import answered, asking, said, user
from treering.agent import create_agent
from treering.agent.messages import (
    calls_of,
    merge_results,
    pending_calls,
    result_message,
    results_of,
    text_of,
)
from treering.errors import InvalidInput

STYLES = ["openai", "anthropic", "blocks"]


@pytest.mark.parametrize("style", STYLES)
def test_calls_are_found_in_their_order(style) -> None:
    message = asking(("c1", "look", {"n": 1}), ("c2", "find", {}), style=style, text="Let me see.")
    assert [(each.id, each.name, each.arguments, each.style) for each in calls_of(message)] == [
        ("c1", "look", {"n": 1}, style),
        ("c2", "find", {}, style),
    ]
    assert text_of(message) == "Let me see."


@pytest.mark.parametrize("style", STYLES)
def test_a_result_is_written_in_the_style_of_its_call(style) -> None:
    (call,) = calls_of(asking(("c1", "look", {}), style=style))
    assert result_message(call, "seen") == answered("c1", "seen", style=style, name="look")
    assert results_of(result_message(call, "no", is_error=True)) == {"c1"}


def test_an_error_is_marked_where_the_style_can() -> None:
    call = {style: calls_of(asking(("c1", "look", {}), style=style))[0] for style in STYLES}
    assert result_message(call["anthropic"], "no", is_error=True)["content"][0]["is_error"] is True
    assert result_message(call["blocks"], "no", is_error=True)["content"][0]["output"]["type"] == "error-text"


def test_names_in_snake_case_are_understood() -> None:
    block = {"type": "tool-call", "tool_call_id": "c1", "tool_name": "look", "args": {"n": 1}}
    result = {"type": "tool-result", "tool_call_id": "c1", "output": "x"}
    (call,) = calls_of({"role": "assistant", "content": [block]})
    assert (call.name, call.arguments) == ("look", {"n": 1})
    assert results_of({"role": "tool", "content": [result]}) == {"c1"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [{"id": "c1"}]},
        {"role": "assistant", "tool_calls": [{"id": "", "function": {"name": "look"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "input": {}}]},
        {"role": "assistant", "content": [{"type": "tool-call", "toolName": "look"}]},
    ],
)
def test_a_call_that_cannot_be_answered_is_refused(message) -> None:
    with pytest.raises(InvalidInput, match="a tool call has no"):
        calls_of(message)


@pytest.mark.parametrize("arguments, problem", [("{", "not JSON"), ("[1]", "not an object"), (None, None)])
def test_unparsable_arguments_are_a_problem_of_the_call(arguments, problem) -> None:
    entry = {"id": "c1", "function": {"name": "look", "arguments": arguments}}
    (call,) = calls_of({"role": "assistant", "tool_calls": [entry]})
    assert call.arguments == {}
    assert (problem in call.problem) if problem else call.problem is None


def test_ordinary_messages_have_neither() -> None:
    for message in (user("Hi"), said("Hello"), {"role": "assistant", "content": None}, {"role": "user"}):
        assert calls_of(message) == []
        assert results_of(message) == set()
        assert isinstance(text_of(message), str)


def test_a_provider_may_have_answered_its_own_call() -> None:
    message = asking(("p1", "web", {}), ("c1", "look", {}), style="blocks")
    message["content"] += answered("p1", "page", style="blocks", name="web")["content"]
    assert [each.id for each in pending_calls([message])] == ["c1"]


@pytest.mark.parametrize("style", STYLES)
def test_one_reply_may_ask_in_several_messages(style) -> None:
    old = [
        asking(("c0", "look", {}), ("lost", "look", {}), style=style),
        answered("c0", "x", style=style, name="look"),
    ]
    reply = [asking((each, "look", {}), style=style) for each in ("c1", "c2")]
    result = answered("c1", "x", style=style, name="look")
    assert [each.id for each in pending_calls([*old, *reply])] == ["c1", "c2"]
    assert [each.id for each in pending_calls([*old, *reply, result])] == ["c2"]


@given(
    style=st.sampled_from(STYLES),
    rounds=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    missing=st.integers(0, 4),
)
def test_pending_calls_are_those_without_a_result(style, rounds, missing) -> None:
    messages = [user("Hi")]
    for number, calls in enumerate(rounds):
        ids = [f"c{number}.{call}" for call in range(calls)]
        messages.append(asking(*((each, "look", {}) for each in ids), style=style))
        messages += [answered(each, "x", style=style, name="look") for each in ids]
    missing = min(missing, rounds[-1])
    cut = messages[: len(messages) - missing]
    last = len(rounds) - 1
    expected = [f"c{last}.{call}" for call in range(rounds[-1] - missing, rounds[-1])]
    assert [each.id for each in pending_calls(cut)] == expected
    seen = merge_results(cut)
    assert [each.id for each in pending_calls(seen)] == expected
    assert set().union(*map(results_of, seen)) == set().union(*map(results_of, cut))
    if style == "openai":
        assert seen == cut
    else:
        assert len(seen) == 1 + 2 * len(rounds) - (missing == rounds[-1])


@pytest.mark.parametrize("wrong", [7, b"bytes", [7], ["text"], [None], 1.5])
def test_an_invalid_prompt_is_refused(wrong):
    agent = create_agent(model=lambda _messages, _tools: "never asked")
    with pytest.raises(InvalidInput, match=r"prompt contains a \w+; give a text, a message"):
        agent.generate(prompt=wrong)


@pytest.mark.parametrize("wrong", [7, None, "name", {"a": print}])
def test_tools_and_middleware_that_are_no_lists_are_refused(wrong):
    for what in ("tools", "middleware"):
        with pytest.raises(InvalidInput, match=rf"{what} is of type \w+; give a list"):
            create_agent(model=lambda _messages, _tools: "", **{what: wrong})


def test_a_model_that_does_not_accept_tools_is_refused_at_once():
    with pytest.raises(InvalidInput, match=r"cannot be called with \(messages, tools\)"):
        create_agent(model=lambda messages: messages)
    for fine in (lambda *_: "", lambda _messages, _tools, _more=1: "", print):
        create_agent(model=fine)
