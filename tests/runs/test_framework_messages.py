"""What each framework and SDK says with a scripted model is read without loss.

Text, thoughts, tool calls with results and errors, images, files and citations: as far as a format has them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

import treering
from tests.servers.npm import NODE
from treering.runs.messages import Part, ReadMessage, message_text, read_message
from treering.store import Store

IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(20)
PIXEL = base64.b64encode(IMAGE).decode()
PNG_URL = f"data:image/png;base64,{PIXEL}"
PDF_URL = "https://example.com/a.pdf"
CITED = {"url": "https://example.com", "title": "Terms"}
DOWN = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "down"}]}
FIXTURES = Path(__file__).parents[1] / "importers" / "fixtures"


@pytest.fixture
def store() -> Iterator[Store]:
    with treering.open("memory:") as opened:
        yield opened


def stored(store: Store, thread: str) -> list[ReadMessage]:
    return [read_message(each) for each in store.thread(thread).load().messages]


def said(messages: list[ReadMessage]) -> list[str]:
    """A line for each message: who, and which parts; ``!`` marks an error."""
    return [
        f"{each.role}: {' '.join(part.kind + '!' * part.is_error for part in each.parts)}"
        for each in messages
    ]


def one(messages: list[ReadMessage], kind: str, name: str | None = None) -> Part:
    parts = [part for each in messages for part in each.parts]
    return next(part for part in parts if part.kind == kind and name in (None, part.name))


def check_values(messages: list[ReadMessage]) -> None:
    """The same values, whatever the format."""
    assert one(messages, "thinking").text == "hm"
    assert (one(messages, "tool_call", "search").value, one(messages, "tool_call").call_id) == (
        {"q": "x"},
        "c1",
    )
    assert one(messages, "tool_result").text == "found"
    assert (one(messages, "citation").text, one(messages, "citation").url) == ("Terms", "https://example.com")


# Frameworks, through their adapters


def test_a_langchain_agent(store):
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.tools import tool

    from treering.adapters.langgraph import TreeringSaver

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - LangChain's signature
            return self

    @tool
    def search(q: str) -> str:
        """Search."""
        return f"found{q[:0]}"

    @tool
    def look() -> list[Any]:
        """Take a screenshot."""
        picture = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
        return [{"type": "text", "text": "the page"}, picture]

    calls = [("search", {"q": "x"}, "c1"), ("look", {}, "c2"), ("unknown", {}, "c3")]
    answers = [
        AIMessage(
            [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "Looking."}],
            tool_calls=[{"name": name, "args": args, "id": call} for name, args, call in calls],
        ),
        AIMessage([{"type": "text", "text": "Done.", "annotations": [{"type": "citation", **CITED}]}]),
    ]
    asked = [
        {"type": "text", "text": "hi"},
        {"type": "image", "base64": PIXEL, "mime_type": "image/png"},
        {"type": "file", "url": PDF_URL, "mime_type": "application/pdf"},
    ]
    agent = create_agent(Scripted(messages=iter(answers)), [search, look], checkpointer=TreeringSaver(store))
    agent.invoke({"messages": [HumanMessage(asked)]}, {"configurable": {"thread_id": "t"}})
    found = stored(store, "t")
    assert said(found) == [
        "user: text image file",
        "assistant: thinking text tool_call tool_call tool_call",
        "tool: tool_result",
        "tool: tool_result",
        "tool: tool_result!",
        "assistant: text citation",
    ]
    check_values(found)
    assert (one(found, "image").url, one(found, "file").url) == (PNG_URL, PDF_URL)
    assert [part.kind for part in found[3].parts[0].parts] == ["text", "image"]


def test_the_openai_agents_sdk(store):
    import agents
    from agents import Agent, Runner, ToolOutputImage, ToolOutputText, function_tool
    from agents.testing import ModelStep, ScriptedModel
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

    from treering.adapters.openai_agents import TreeringSession

    @function_tool
    def search(q: str) -> str:
        return f"found{q[:0]}"

    @function_tool
    def look() -> list[Any]:
        return [ToolOutputText(text="the page"), ToolOutputImage(image_url=PNG_URL)]

    def call(name: str, arguments: str, call_id: str) -> ResponseFunctionToolCall:
        return ResponseFunctionToolCall(
            type="function_call", name=name, arguments=arguments, call_id=call_id, id=f"f{call_id}"
        )

    def answer(text: str, *annotations: Any) -> ResponseOutputMessage:
        content = [{"type": "output_text", "text": text, "annotations": annotations}]
        fields = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
        return ResponseOutputMessage.model_validate({**fields, "content": content})

    thought = {"id": "r", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    first = [
        ResponseReasoningItem.model_validate(thought),
        answer("Looking."),
        call("search", '{"q": "x"}', "c1"),
        call("look", "{}", "c2"),
    ]
    cited = answer("Done.", {"type": "url_citation", **CITED, "start_index": 0, "end_index": 2})
    model = ScriptedModel([ModelStep(output=first), ModelStep(output=[cited])])
    asked: Any = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hi"},
                {"type": "input_image", "image_url": PNG_URL},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
            ],
        }
    ]
    session = TreeringSession("t", store)
    run = Runner.run(
        Agent("clerk", model=model, tools=[search, look]),
        asked,
        session=session,
        run_config=agents.RunConfig(tracing_disabled=True),
    )
    asyncio.run(run)
    found = stored(store, "t")
    assert said(found) == [
        "user: text image file",
        "assistant: thinking",
        "assistant: text",
        "assistant: tool_call",
        "assistant: tool_call",
        "tool: tool_result",
        "tool: tool_result",
        "assistant: text citation",
    ]
    check_values(found)
    assert (one(found, "image").url, one(found, "file").name) == (PNG_URL, "a.pdf")
    assert [part.kind for part in found[6].parts[0].parts] == ["text", "image"]
    assert {each.name for each in found} == {None}


def test_pydantic_ai(store):
    from pydantic_ai import Agent, BinaryContent, DocumentUrl, ModelRetry
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import FilePart, ModelResponse, TextPart, ThinkingPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from treering.adapters.pydantic_ai import TreeringCheckpoints, TreeringConversationStore

    def answer(messages: list[Any], _: Any) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("Done."), FilePart(BinaryContent(IMAGE, media_type="image/png"))])
        calls = [ToolCallPart("search", '{"q": "x"}', "c1"), ToolCallPart("broken", {}, "c2")]
        return ModelResponse([ThinkingPart("hm"), TextPart("Looking."), *calls])

    async def talk() -> None:
        async with TreeringConversationStore(store) as conversations:
            agent = Agent(FunctionModel(answer), capabilities=[TreeringCheckpoints(conversations)])

            @agent.tool_plain
            def search(q: str) -> str:
                return f"found{q[:0]}"

            @agent.tool_plain
            def broken() -> str:
                raise ModelRetry("down")

            asked = ["hi", BinaryContent(IMAGE, media_type="image/png"), DocumentUrl(PDF_URL)]
            await agent.run(asked, conversation=Conversation(conversation_id="t"))

    asyncio.run(talk())
    found = stored(store, "t")
    assert said(found) == [
        "user: text image file",
        "assistant: thinking text tool_call tool_call",
        "tool: tool_result tool_result!",
        "assistant: text image",
    ]
    assert (one(found, "thinking").text, one(found, "tool_call").value) == ("hm", {"q": "x"})
    assert (one(found, "image").url, one(found, "file").url) == (PNG_URL, PDF_URL)
    assert found[3].parts[1].url == PNG_URL


def test_google_adk(store):
    from google.adk.agents import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import Runner
    from google.genai import types

    from treering.adapters.adk import TreeringSessionService

    blob = types.Part(inline_data=types.Blob(mime_type="image/png", data=IMAGE))
    calls = [("c1", "search", {"q": "x"}), ("c2", "broken", {})]
    first = [
        types.Part(text="hm", thought=True),
        types.Part(text="Looking."),
        *(
            types.Part(function_call=types.FunctionCall(id=call, name=name, args=args))
            for call, name, args in calls
        ),
    ]
    source = types.GroundingChunk(web=types.GroundingChunkWeb(uri=CITED["url"], title=CITED["title"]))

    class Scripted(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:  # noqa: ARG002, FBT001, FBT002 - ADK's signature
            parts = [part for each in llm_request.contents for part in each.parts or []]
            if not any(part.function_response for part in parts):
                yield LlmResponse(content=types.Content(role="model", parts=first))
                return
            yield LlmResponse(
                content=types.Content(role="model", parts=[types.Part(text="Done."), blob]),
                grounding_metadata=types.GroundingMetadata(grounding_chunks=[source]),
            )

    def search(q: str) -> str:
        """Search."""
        return f"found{q[:0]}"

    def broken() -> dict[str, str]:
        """Fail."""
        return {"error": "down"}

    async def talk() -> None:
        sessions = TreeringSessionService(store)
        await sessions.create_session(app_name="app", user_id="u", session_id="s")
        agent = LlmAgent(name="clerk", model=Scripted(model="scripted"), tools=[search, broken])
        runner = Runner(app_name="app", agent=agent, session_service=sessions)
        file = types.Part(file_data=types.FileData(mime_type="application/pdf", file_uri=PDF_URL))
        asked = types.Content(role="user", parts=[types.Part(text="hi"), blob, file])
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=asked):
            pass

    asyncio.run(talk())
    found = stored(store, "app/u/s")
    assert said(found) == [
        "user: text image file",
        "assistant: thinking text tool_call tool_call",
        "tool: tool_result tool_result!",
        "assistant: text image citation",
    ]
    check_values(found)
    assert (one(found, "image").url, one(found, "file").url, found[3].name) == (PNG_URL, PDF_URL, "clerk")


def test_claude_code_and_codex(store):
    from treering.importers.claude_code.sessions import import_claude_code
    from treering.importers.codex import import_codex

    import_claude_code(FIXTURES / "claude-code" / "projects", store)
    import_codex(FIXTURES / "codex" / "sessions", store)
    threads = [(each.id, stored(store, each.id)) for each in store.threads()]
    assert {name.partition("/")[0] for name, _ in threads} == {"claude-code", "codex"}
    for name, messages in threads:
        kinds = {part.kind for each in messages for part in each.parts}
        assert kinds >= {"text", "tool_call", "tool_result"}, name
        assert "data" not in kinds, name
        assert {each.role for each in messages} <= {"user", "assistant", "system", "tool"}, name


def test_the_events_that_codex_prints():
    lines = (FIXTURES / "codex" / "stream-0.jsonl").read_text("utf-8").splitlines()
    items = [line for line in map(json.loads, lines) if line["type"] == "item.completed"]
    found = list(map(read_message, items))
    assert said(found) == [
        "message: error",
        "assistant: thinking",
        "assistant: text",
        "assistant: tool_call tool_result",
        "assistant: tool_call tool_result!",
        "assistant: text",
    ]
    assert "note.txt" in message_text(found[3])


# SDKs of providers, and the AI SDK


def answered(answer: dict[str, Any]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=answer)))


def test_openai_chat_completions():
    from openai import OpenAI

    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    message = {
        "role": "assistant",
        "content": "Looking.",
        "reasoning_content": "hm",
        "annotations": [
            {"type": "url_citation", "url_citation": {**CITED, "start_index": 0, "end_index": 3}}
        ],
        "tool_calls": [call],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice]}
    asked: Any = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": PNG_URL}},
                {
                    "type": "file",
                    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
                },
            ],
        }
    ]
    client = OpenAI(api_key="none", http_client=answered(answer))
    reply = client.chat.completions.create(model="gpt-5", messages=asked).choices[0].message
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    found = list(map(read_message, [*asked, reply.model_dump(mode="json"), result]))
    assert said(found) == [
        "user: text image file",
        "assistant: thinking text citation tool_call",
        "tool: tool_result",
    ]
    check_values(found)


def test_openai_responses():
    from openai import OpenAI

    annotation = {"type": "url_citation", **CITED, "start_index": 0, "end_index": 2}
    output: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "web_search_call", "action": {"type": "search", "query": "x"}},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": "x"}'},
        {"type": "image_generation_call", "result": PIXEL},
        {
            "type": "code_interpreter_call",
            "code": "1 + 1",
            "container_id": "x",
            "outputs": [{"type": "logs", "logs": "2"}],
        },
        {"type": "mcp_call", "name": "roll", "server_label": "dice", "arguments": "{}", "output": "4"},
        {"type": "mcp_call", "name": "roll", "server_label": "dice", "arguments": "{}", "error": DOWN},
        {"type": "mcp_list_tools", "server_label": "dice", "tools": [{"name": "roll", "input_schema": {}}]},
        {
            "type": "file_search_call",
            "queries": ["x"],
            "results": [{"file_id": "f", "filename": "a.txt", "text": "found"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Done.", "annotations": [annotation]}],
        },
    ]
    answer = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": "completed",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [{"id": f"i{at}", "status": "completed", **item} for at, item in enumerate(output)],
    }
    client = OpenAI(api_key="none", http_client=answered(answer))
    items = client.responses.create(model="gpt-5", input="hi").output
    found = [read_message(each.model_dump(mode="json", exclude_none=True)) for each in items]
    assert said(found) == [
        "assistant: thinking",
        "assistant: tool_call",
        "assistant: tool_call",
        "assistant: image",
        "assistant: tool_call tool_result",
        "assistant: tool_call tool_result",
        "assistant: tool_call tool_result!",
        "tool: tool_result",
        "assistant: tool_call tool_result",
        "assistant: text citation",
    ]
    assert (one(found, "image").url, one(found, "citation").url) == (PNG_URL, "https://example.com")
    assert [message_text(found[at]) for at in (4, 5)] == ["→ code_interpreter(1 + 1)\n2", "→ roll({})\n4"]


def test_anthropic():
    from anthropic import Anthropic

    result = {"type": "web_search_result", **CITED, "encrypted_content": "x", "page_age": None}
    cited = {"type": "web_search_result_location", **CITED, "cited_text": "no", "encrypted_index": "x"}
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [result]},
        {"type": "web_search_tool_result", "tool_use_id": "s2", "content": failed},
        {"type": "text", "text": "Done.", "citations": [cited]},
    ]
    answer = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": content,
    }
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=answer))
    client = Anthropic(api_key="none", http_client=httpx2.Client(transport=transport))
    reply = client.messages.create(model="claude", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    asked = [{"type": "image", "source": source}, {"type": "document", "title": "a.pdf", "source": pdf}]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "down", "is_error": True},
    ]
    messages: list[Any] = [
        {"role": "user", "content": asked},
        reply.model_dump(mode="json"),
        {"role": "user", "content": results},
    ]
    found = list(map(read_message, messages))
    assert said(found) == [
        "user: image file",
        "assistant: thinking thinking tool_call tool_call tool_result tool_result! text citation",
        "tool: tool_result tool_result!",
    ]
    assert [part.kind for part in found[1].parts[4].parts] == ["citation"]
    assert (one(found, "image").url, one(found, "file").name) == (PNG_URL, "a.pdf")
    assert one(found, "citation").text == "Terms"


@pytest.mark.parametrize("mode", ["json", "python"])
def test_gemini(mode):
    from google import genai

    parts = [
        {"text": "hm", "thought": True},
        {"text": "Looking."},
        {"functionCall": {"id": "c1", "name": "search", "args": {"q": "x"}}},
        {"executableCode": {"language": "PYTHON", "code": "1 + 1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
        {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": PDF_URL}},
    ]
    source = {"web": {"uri": CITED["url"], "title": CITED["title"]}}
    candidate = {
        "content": {"role": "model", "parts": parts},
        "groundingMetadata": {"groundingChunks": [source]},
        "finishReason": "STOP",
    }
    options: Any = {"httpx_client": answered({"candidates": [candidate]})}
    client = genai.Client(api_key="none", http_options=options)
    (reply,) = client.models.generate_content(model="gemini-3", contents="hi").candidates or []
    found = [read_message(reply.model_dump(mode=mode, exclude_none=True))]
    assert said(found) == [
        "assistant: thinking text tool_call tool_call tool_result image file citation",
    ]
    assert one(found, "tool_result").text == "2"
    assert (one(found, "image").url, one(found, "file").url) == (PNG_URL, PDF_URL)


@pytest.mark.timeout(300)  # the first time, npm fetches it
def test_the_ai_sdk(npm: Callable[[str, str], Path]):
    folder = npm("ai", "7.0.173").parent
    script = (Path(__file__).parent / "ai_sdk.mjs").read_text("utf-8")
    options = {"cwd": folder, "input": script, "capture_output": True, "text": True}
    done = subprocess.run([str(NODE), "--input-type=module", "-"], check=False, **options)
    assert done.returncode == 0, done.stderr
    messages = json.loads(done.stdout)
    found = list(map(read_message, messages["model"]))
    assert said(found) == [
        "user: text image file",
        "assistant: thinking text image tool_call tool_call",
        "tool: tool_result tool_result!",
        "assistant: text",
    ]
    assert found[0].parts[1].url == "data:image/png;base64,iVBORw0KGgoAAAAA"
    shown = list(map(read_message, messages["ui"]))
    assert said(shown) == [
        "assistant: thinking text citation image tool_call tool_result tool_call tool_result! text",
    ]
    check_values(shown)
