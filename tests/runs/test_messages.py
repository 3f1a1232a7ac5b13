"""Messages of every format are read into the same parts; each is made by the SDK that it belongs to."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.runs.messages import Part, message_text, preview, read_message, read_messages

PIXEL = base64.b64encode(b"\x89PNG").decode()
IMPORTS = Path(__file__).parents[1] / "importers" / "fixtures"


def kinds(message: Any) -> list[str]:
    return [part.kind for part in read_message(message).parts]


def only(message: Any) -> Part:
    (part,) = read_message(message).parts
    return part


def plain(model: Any) -> Any:
    return model.model_dump(mode="json", exclude_none=True)


# OpenAI


def test_an_openai_tool_call_has_its_name_and_decoded_arguments():
    from openai.types.chat import ChatCompletionMessage

    message = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "search", "arguments": '{"q": "refund"}'},
                }
            ],
        }
    )
    found = read_message(message.model_dump(mode="json"))
    assert found.role == "assistant"
    assert found.parts == [Part(kind="tool_call", name="search", call_id="c1", value={"q": "refund"})]
    assert preview(message.model_dump(mode="json")) == '→ search({"q":"refund"})'


def test_an_openai_custom_tool_call_keeps_its_text():
    call = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    assert only({"role": "assistant", "tool_calls": [call]}).value == "select 1"


def test_an_openai_tool_message_is_a_result():
    found = read_message({"role": "tool", "tool_call_id": "c1", "content": "found 3"})
    assert (found.role, found.parts) == ("tool", [Part(kind="tool_result", call_id="c1", text="found 3")])


def test_openai_content_parts_are_text_image_and_file():
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    text, image, file, audio = read_message({"role": "user", "content": content}).parts
    assert (text.kind, text.text) == ("text", "look")
    assert (image.kind, image.url) == ("image", "https://example.com/a.png")
    assert (file.kind, file.name, file.url) == ("file", "a.pdf", "data:application/pdf;base64,AAAA")
    assert audio.kind == "file"


def test_items_of_the_responses_api_are_messages_of_their_own():
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseFunctionWebSearch,
        ResponseOutputMessage,
        ResponseReasoningItem,
    )

    said = ResponseOutputMessage.model_validate(
        {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {
                    "type": "output_text",
                    "text": "It was sent.",
                    "annotations": [
                        {
                            "type": "url_citation",
                            "url": "https://example.com",
                            "title": "Terms",
                            "start_index": 0,
                            "end_index": 2,
                        }
                    ],
                }
            ],
        }
    )
    assert kinds(plain(said)) == ["text", "citation"]
    thought = ResponseReasoningItem.model_validate(
        {"id": "r1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Check the bank"}]}
    )
    assert only(plain(thought)) == Part(kind="thinking", text="Check the bank")
    call = ResponseFunctionToolCall(
        type="function_call", name="f", arguments='{"a": 1}', call_id="c1", id="x"
    )
    assert only(plain(call)) == Part(kind="tool_call", name="f", call_id="c1", value={"a": 1})
    assert read_message(plain(call)).role == "assistant"
    search = ResponseFunctionWebSearch.model_validate(
        {
            "id": "w",
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "q"},
        }
    )
    assert only(plain(search)).name == "web_search"
    output = {"type": "function_call_output", "call_id": "c1", "output": "1 €"}
    assert read_message(output).role == "tool"
    assert only(output) == Part(kind="tool_result", call_id="c1", text="1 €")


# Anthropic


def test_anthropic_blocks_are_read_in_order():
    from anthropic.types import Message

    message = Message.model_validate(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "refund"}},
            ],
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )
    found = read_message(plain(message))
    assert found.role == "assistant"
    assert [part.kind for part in found.parts] == ["thinking", "thinking", "text", "tool_call"]
    assert found.parts[3] == Part(kind="tool_call", name="search", call_id="t1", value={"q": "refund"})


def test_an_anthropic_result_in_a_users_message_is_a_tools():
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "no"}],
        "is_error": True,
    }
    found = read_message({"role": "user", "content": [result]})
    assert found.role == "tool"
    assert found.parts == [Part(kind="tool_result", call_id="t1", text="no", is_error=True)]
    assert preview({"role": "user", "content": [result]}) == "error: no"


def test_anthropic_images_and_documents_have_urls():
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    image = only({"role": "user", "content": [{"type": "image", "source": source}]})
    assert (image.kind, image.url) == ("image", f"data:image/png;base64,{PIXEL}")
    document = {
        "type": "document",
        "title": "Terms",
        "source": {"type": "url", "url": "https://example.com/t"},
    }
    found = only({"role": "user", "content": [document]})
    assert (found.kind, found.name, found.url) == ("file", "Terms", "https://example.com/t")


# LangChain and LangGraph


def test_langchain_messages_are_read_as_the_saver_stores_them(tmp_path):
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    import treering
    from treering.adapters.langgraph import TreeringSaver

    said = [
        AIMessage([{"type": "text", "text": "a"}], tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}]),
        ToolMessage("no", tool_call_id="c1", name="f", status="error"),
        AIMessage("done", additional_kwargs={"reasoning_content": "hm"}),
    ]
    builder = StateGraph(MessagesState)
    builder.add_node("talk", lambda _: {"messages": said})
    builder.add_edge(START, "talk")
    builder.add_edge("talk", END)
    with treering.open(tmp_path) as store:
        graph = builder.compile(checkpointer=TreeringSaver(store))
        graph.invoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "t"}})
        stored = [read_message(each) for each in store.thread("t").load().messages]
    assert [each.role for each in stored] == ["user", "assistant", "tool", "assistant"]
    assert [part.kind for part in stored[1].parts] == ["text", "tool_call"]
    assert stored[1].parts[1] == Part(kind="tool_call", name="f", call_id="c1", value={"x": 1})
    assert stored[2].parts == [Part(kind="tool_result", name="f", call_id="c1", text="no", is_error=True)]
    assert [part.kind for part in stored[3].parts] == ["thinking", "text"]


def test_langchains_serialised_objects_are_read():
    from langchain_core.load import dumpd
    from langchain_core.messages import AIMessage, message_to_dict

    message = AIMessage("x", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "1"}])
    for form in (dumpd(message), message_to_dict(message), plain(message)):
        found = read_message(form)
        assert found.role == "assistant"
        assert [part.kind for part in found.parts] == ["text", "tool_call"]


def test_a_call_in_the_content_and_beside_it_is_shown_once():
    from langchain_core.messages import AIMessage

    block = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}
    message = AIMessage([block], tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}])
    assert kinds(plain(message)) == ["tool_call"]


# pydantic-ai


def test_pydantic_ai_requests_and_responses():
    from pydantic_ai.messages import (
        BinaryContent,
        ImageUrl,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    binary = BinaryContent(b"abc", media_type="image/png")
    messages = [
        ModelRequest(
            [SystemPromptPart("be brief"), UserPromptPart(["hi", ImageUrl("https://x/y.png"), binary])]
        ),
        ModelResponse([ThinkingPart("hm"), TextPart("a"), ToolCallPart("search", '{"q": 1}', "c1")]),
        ModelRequest([ToolReturnPart("search", {"r": 1}, "c1")]),
    ]
    first, second, third = json.loads(ModelMessagesTypeAdapter.dump_json(messages))
    assert kinds(first) == ["text", "text", "image", "image"]
    assert read_message(first).parts[3].url == "data:image/png;base64,YWJj"
    assert read_message(second).role == "assistant"
    assert kinds(second) == ["thinking", "text", "tool_call"]
    assert read_message(second).parts[2].value == {"q": 1}
    assert read_message(third).role == "tool"
    assert only(third) == Part(kind="tool_result", name="search", call_id="c1", value={"r": 1})


# Gemini and ADK


@pytest.mark.parametrize("by_alias", [False, True])
def test_gemini_parts_in_an_adk_event(by_alias):
    from google.adk.events import Event
    from google.genai import types

    parts = [
        types.Part(text="hm", thought=True),
        types.Part(text="Looking."),
        types.Part(function_call=types.FunctionCall(id="1", name="f", args={"a": 1})),
        types.Part(function_response=types.FunctionResponse(id="1", name="f", response={"result": 2})),
        types.Part(inline_data=types.Blob(mime_type="image/png", data=b"abc")),
        types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON)),
        types.Part(
            code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_FAILED, output="x")
        ),
    ]
    event = Event(author="planner", content=types.Content(role="model", parts=parts))
    found = read_message(json.loads(event.model_dump_json(exclude_none=True, by_alias=by_alias)))
    assert (found.role, found.name) == ("assistant", "planner")
    assert [part.kind for part in found.parts] == [
        "thinking", "text", "tool_call", "tool_result", "image", "tool_call", "tool_result",
    ]  # fmt: skip
    assert found.parts[2] == Part(kind="tool_call", name="f", call_id="1", value={"a": 1})
    assert found.parts[3].value == 2
    assert found.parts[6].is_error


def test_an_error_of_adk_is_shown():
    event = {"author": "planner", "error_code": "429", "error_message": "quota"}
    assert read_message(event).parts == [Part(kind="error", text="quota")]


# OpenTelemetry, the AI SDK


def test_opentelemetry_parts():
    from opentelemetry.util.genai import types

    parts = [
        types.Text(content="hi"),
        types.ToolCallRequest(name="f", id="c1", arguments={"a": 1}),
        types.ToolCallResponse(id="c1", response="ok"),
    ]
    message = {"role": "assistant", "parts": [vars(part) | {"type": part.type} for part in parts]}
    text, call, result = read_message(message).parts
    assert text.text == "hi"
    assert call == Part(kind="tool_call", name="f", call_id="c1", value={"a": 1})
    assert result == Part(kind="tool_result", call_id="c1", text="ok")
    blob = {"type": "blob", "mime_type": "image/png", "modality": "image", "content": PIXEL}
    assert only({"role": "user", "parts": [blob]}).url == f"data:image/png;base64,{PIXEL}"
    assert only({"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}]}).kind == "thinking"


def test_the_ai_sdks_interface_messages():
    message = {
        "id": "1",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "hm"},
            {"type": "text", "text": "Sunny.", "state": "done"},
            {
                "type": "tool-weather",
                "toolCallId": "c1",
                "state": "output-available",
                "input": {"in": "Graz"},
                "output": 21,
            },
            {"type": "dynamic-tool", "toolName": "x", "toolCallId": "c2", "input": {}, "errorText": "down"},
            {"type": "source-url", "sourceId": "s", "url": "https://example.com", "title": "Weather"},
            {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PIXEL}"},
            {"type": "data-weather", "data": {"t": 21}},
        ],
    }  # fmt: skip
    found = read_message(message).parts
    assert [part.kind for part in found] == [
        "thinking", "text", "tool_call", "tool_result", "tool_call", "tool_result", "citation", "image",
        "data",
    ]  # fmt: skip
    assert (found[2].name, found[3].value, found[5].is_error) == ("weather", 21, True)


def test_the_ai_sdks_model_messages():
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": {"a": 1}}
    assert only({"role": "assistant", "content": [call]}) == Part(
        kind="tool_call", name="f", call_id="c1", value={"a": 1}
    )
    output = {"type": "error-text", "value": "down"}
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "f", "output": output}
    assert only({"role": "tool", "content": [result]}) == Part(
        kind="tool_result", name="f", call_id="c1", text="down", is_error=True
    )


# Log lines


def test_lines_of_claude_code_and_codex_are_unwrapped():
    claude = {
        "type": "assistant",
        "uuid": "u",
        "message": {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}],
        },
    }
    assert (read_message(claude).role, kinds(claude)) == ("assistant", ["tool_call"])
    codex = {
        "type": "response_item",
        "payload": {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"},
    }
    assert only(codex) == Part(kind="tool_call", name="shell", call_id="c", value={})
    assert only({"type": "summary", "summary": "Fixed the tests"}).text == "Fixed the tests"


# Any value


def test_what_is_not_understood_is_shown_as_data():
    assert only({"role": "user", "content": [{"type": "hologram", "x": 1}]}) == Part(
        kind="data", value={"type": "hologram", "x": 1}
    )
    assert only({"answer": 42}) == Part(kind="data", value={"answer": 42})
    assert only(42) == Part(kind="data", value=42)
    assert read_message("hi").parts == [Part(kind="text", text="hi")]


def test_an_empty_message_has_no_parts():
    assert read_message({"role": "assistant", "content": ""}).parts == []
    assert preview({"role": "assistant", "content": ""}) == ""


def test_a_preview_is_one_line_and_leaves_out_thoughts():
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "one\n\ntwo " + "x" * 200}]
    found = preview({"role": "assistant", "content": blocks}, 20)
    assert found == "one two xxxxxxxxxxx…"
    assert preview({"role": "assistant", "content": blocks[:1]}) == "thinking: hm"


@pytest.mark.parametrize(
    "text, shown",
    [
        (
            "# Refund\n\nPaid **19 €**, see [the invoice](https://example.com).",
            "Refund Paid 19 €, see the invoice.",
        ),
        ("> quoted\n```python\nx = a**b\n```", "quoted x = a**b"),
        ("2 * 3 * 4, snake_case and __init__ [1]", "2 * 3 * 4, snake_case and __init__ [1]"),
    ],
)
def test_a_preview_leaves_out_markup(text, shown):
    assert preview({"role": "assistant", "content": text}) == shown
    assert preview({"role": "tool", "content": text}) == " ".join(text.split())


NAMES = """
    annotations args content data error function function_call id image_url input kind kwargs lc message name
    output part_kind parts payload result role source summary text thinking tool_calls type url value
""".split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=25,
)
TYPES = st.sampled_from(
    ["text", "tool_use", "tool_result", "image", "reasoning", "file", "message", "error", "tool-x"]
)


@given(JSON, TYPES)
def test_reading_never_fails_and_can_always_be_shown(value, kind):
    for message in (
        value,
        {"role": "user", "content": [value]},
        {"type": kind, "content": value, "toolCallId": value},
        {"role": "user", "content": "hi", "type": value, "kind": value, "parts": value},
        {"type": value, "error": value},
        [{"type": value, "role": value}, value],
    ):
        read_messages(message)
        found = read_message(message)
        assert isinstance(message_text(found), str)
        assert len(preview(message)) <= 120
        msgspec.json.encode(found)


# Values that hold messages


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "hi"},
        [{"role": "user", "content": "hi"}],
        {"messages": [{"role": "user", "content": "hi"}], "temperature": 0},
        {"type": "human", "content": "hi"},
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "hi"}]},
    ],
)
def test_a_value_that_holds_messages_is_read_as_them(value):
    (found,) = read_messages(value) or []
    assert (found.role, message_text(found)) == ("user", "hi")


def test_a_list_of_parts_is_one_message():
    found = read_messages([{"type": "text", "text": "see"}, {"type": "image", "data": "AAAA"}])
    assert found is not None
    assert [part.kind for part in found[0].parts] == ["text", "image"]


@pytest.mark.parametrize(
    "value", [None, "hi", 3, [], {}, {"q": "refund"}, {"role": "admin"}, [1, 2], [{"id": 1}], {"type": "ai"}]
)
def test_other_values_hold_no_messages(value):
    assert read_messages(value) is None


def test_a_result_with_a_screenshot_has_parts():
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [
            {"type": "text", "text": "the page"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        ],
    }
    (found,) = read_message({"role": "user", "content": [result]}).parts
    assert [part.kind for part in found.parts] == ["text", "image"]
    assert found.parts[1].url == f"data:image/png;base64,{PIXEL}"
    assert message_text(read_message({"role": "user", "content": [result]})) == "the page\n[image image/png]"


PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.mark.parametrize(
    "content",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "image": PNG},
        {"type": "file", "data": PNG, "mediaType": "image/png"},
        {"type": "image", "data": PNG},
        PNG,
    ],
)
def test_an_image_that_is_stored_as_bytes_has_a_data_url(content):
    for message in ({"role": "user", "content": [content]}, {"role": "tool", "content": [content]}):
        (part,) = read_message(message).parts
        (image,) = part.parts or [part]
        assert (image.kind, image.media_type) == ("image", "image/png")
        assert image.url == "data:image/png;base64," + base64.b64encode(PNG).decode()


def test_bytes_that_are_no_image_are_a_file_and_large_ones_only_a_size():
    (part,) = read_message({"role": "user", "content": b"\x00\x01"}).parts
    assert (part.kind, part.url) == ("file", "data:application/octet-stream;base64,AAE=")
    (part,) = read_message({"role": "user", "content": PNG + bytes(9_000_000)}).parts
    assert (part.kind, part.url, part.text) == ("image", None, "9,000,028 bytes")
