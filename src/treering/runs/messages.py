"""Read a message of any format into the same few parts.

Providers and frameworks write down the same conversation in different ways: OpenAI's chat messages and its
Responses items, Anthropic's content blocks, LangChain's messages, the parts of pydantic-ai, Gemini and ADK,
OpenTelemetry and the Vercel AI SDK, the lines of Claude Code and Codex. treering stores each as it came.
Everything that shows messages to people reads them with `read_message` first: the dashboard, the command
line, search results and the MCP server.

A message becomes a role and a list of parts. A part is a text, a thought, a tool call or its result, an
image or another file, a citation, an error, or data that none of these formats describes. Where a message
holds a list, its entries are told apart by their ``type`` (or ``part_kind``, or ``kind``) in `_READERS`;
Gemini's parts, which have no type, by the one field that they have.

**Invariant:** reading never fails and never hides: what is not understood becomes a ``data`` part that holds
the value itself.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

PartKind = Literal[
    "text", "thinking", "tool_call", "tool_result", "image", "file", "citation", "error", "data"
]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message.

    ``text`` has the words of a text, thought or error, the text of a tool's result, or a citation's title.
    ``name`` is the tool's or the file's. ``call_id`` connects a result with its call. ``value`` has the
    arguments of a call, a structured result, or the data. ``parts`` are those of a result that is more than
    text, such as a screenshot. ``url`` locates an image, a file or a source; inline bytes have a ``data:``
    URL.
    """

    kind: PartKind
    text: str = ""
    name: str | None = None
    call_id: str | None = None
    value: Any = None
    url: str | None = None
    media_type: str | None = None
    parts: list[Part] = []
    is_error: bool = False


class ReadMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as people see it: who says it (``name`` if the role is not enough), and its parts."""

    role: str
    parts: list[Part]
    name: str | None = None


_Fields = Mapping[str, Any]
_Reader = Callable[[_Fields], Iterator[Part]]

_ROLES: Final = {
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "agent_message": "assistant",
    "chat": "user",
    "developer": "system",
    "function": "tool",
    "human": "user",
    "image_generation_call": "assistant",
    "model": "assistant",
    "request": "user",
    "response": "assistant",
    "user_message": "user",
}
"""Other names of the usual roles."""

_SPEAKERS: Final = frozenset({"user", "assistant", "system", "tool"})

_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Colours and titles in what a program printed."""

_MARKUP: Final = re.compile(
    r"(?m)^ {0,3}(?:#{1,6} +|> ?|```[\w+-]*$)"
    r"|(?<!\w)\*\*(?=\S)|(?<=\S)\*\*(?!\w)"
    r"|!?\[([^\]\n]*)\]\(\S+?\)"
)
"""Markdown that a preview leaves out: headings, quotes, fences, bold, and where links lead."""

_MAX_DEPTH: Final = 8
"""How deep a message may be wrapped in others; what is deeper is shown as data."""


def read_message(message: Any) -> ReadMessage:
    """Return a message of any format as its role and parts."""
    if isinstance(message, str):
        return ReadMessage(role="message", parts=_texts(message))
    if isinstance(message, bytes):
        return ReadMessage(role="message", parts=[_bytes(message)])
    if not isinstance(message, Mapping):
        return ReadMessage(role="message", parts=[Part(kind="data", value=message)])
    return _read(cast("_Fields", message), 0)


def read_messages(value: Any) -> list[ReadMessage] | None:
    """Return the messages that a value is or holds, or None if it is something else.

    A value is a message, a list of messages, an object with such a list under ``messages``, or the list of
    parts that one message consists of.
    """
    if isinstance(value, Mapping):
        fields = cast("_Fields", value)
        held = fields.get("messages")
        if isinstance(held, (list, tuple)) and held:
            return read_messages(held)
        return [read_message(fields)] if _is_message(fields) else None
    entries = _items(value)
    if not entries or not all(isinstance(each, Mapping) for each in entries):
        return None
    mappings = [_mapping(each) for each in entries]
    if all(map(_is_message, mappings)):
        return [read_message(each) for each in mappings]
    if all(_kind(each) in _READERS for each in mappings):
        return [_read({"content": entries}, 0)]
    return None


def message_text(message: ReadMessage) -> str:
    """Return what a message says as plain text, with a line for each part that is not text."""
    return "\n".join(filter(None, map(_line, message.parts)))


def preview(message: Any, limit: int = 120) -> str:
    """Return the beginning of what a message says, on one line.

    Thoughts are left out if there is anything else.
    """
    return preview_of(read_message(message), limit)


def preview_of(message: ReadMessage, limit: int = 120) -> str:
    """Return the beginning of what a message that was read says, on one line."""
    parts = message.parts
    shown = [part for part in parts if part.kind != "thinking"] or parts
    lines = (_MARKUP.sub(r"\1", part.text) if part.kind == "text" else _line(part) for part in shown)
    return _flat(" ".join(filter(None, lines)), limit)


def preview_value(value: Any, limit: int = 120) -> str:
    """Return the beginning of an input or output that is no message, on one line."""
    if isinstance(value, Mapping) and len(fields := cast("_Fields", value)) == 1:
        return preview_value(next(iter(fields.values())), limit)
    return _flat(value if isinstance(value, str) else _json(value), limit)


def _flat(text: str, limit: int) -> str:
    flat = " ".join(_TERMINAL.sub("", text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _read(fields: _Fields, depth: int) -> ReadMessage:
    inner = _unwrap(fields)
    if inner is not None and depth < _MAX_DEPTH:
        found = _read(inner, depth + 1)
        if sources := list(_annotations(fields)):
            found = msgspec.structs.replace(found, parts=[*found.parts, *sources])
        role, name = _role(fields), _name(fields)
        if role is not None and found.role in ("message", "user") and role != "message":
            found = msgspec.structs.replace(found, role=role)
        return found if name is None else msgspec.structs.replace(found, name=name)
    parts = [*_error(fields), *_body(fields), *_calls(fields)]
    role = _role(fields) or _role_of_parts(parts) or "message"
    if not parts and not _has_body(fields):
        parts = [Part(kind="data", value=dict(fields))]
    if role == "tool" and parts and all(part.kind != "tool_result" for part in parts):
        parts = [_result_of(fields, parts)]
    elif role == "user" and parts and all(part.kind == "tool_result" for part in parts):
        role = "tool"  # results travel in messages of the user
    return ReadMessage(role=role, parts=parts, name=_name(fields))


def _unwrap(fields: _Fields) -> _Fields | None:
    """Return the message inside of an envelope: a log line, an event, or a serialised object."""
    if fields.get("lc") == 1 and isinstance(fields.get("kwargs"), Mapping):
        kwargs = dict(_mapping(fields["kwargs"]))
        path = _items(fields.get("id"))
        if "type" not in kwargs and path:
            kwargs["type"] = str(path[-1]).removesuffix("Chunk").removesuffix("Message").lower()
        return kwargs
    kind = fields.get("type")
    for key in ("message", "payload", "item", "data", "content"):
        inner = fields.get(key)
        if not isinstance(inner, Mapping):
            continue
        found = _mapping(inner)
        if key == "message" and ("content" in found or "role" in found):
            return found
        if key == "payload" and isinstance(kind, str):
            return found
        if key == "item" and isinstance(kind, str) and kind.startswith("item."):
            return found
        if key == "data" and _ROLES.get(str(kind), kind) in _SPEAKERS:
            return {"type": kind, **found}
        if key == "content" and "parts" in found:
            return found
    return None


def _role(fields: _Fields) -> str | None:
    for key in ("role", "type", "kind", "agent_id", "author"):
        value = fields.get(key)
        if not isinstance(value, str) or not value:
            continue
        known = _ROLES.get(value, value)
        if key in ("role", "agent_id", "author"):
            return known
        if known in _SPEAKERS:
            return known
    return None


def _role_of_parts(parts: Sequence[Part]) -> str | None:
    kinds = {part.kind for part in parts}
    if kinds == {"tool_result"}:
        return "tool"
    return "assistant" if kinds & {"tool_call", "thinking"} else None


def _is_message(fields: _Fields) -> bool:
    """Whether an object says who speaks, or is an item that stands for a message by itself."""
    if fields.get("lc") == 1:
        return True
    if isinstance(fields.get("role"), str) and (_has_body(fields) or "tool_calls" in fields):
        return True
    kind = _kind(fields)
    if _ROLES.get(kind, kind) in _SPEAKERS:
        return _has_body(fields)
    is_item = kind in ("function_call", "function_call_output", "reasoning")
    return is_item or ("parts" in fields and _string(fields, "kind") in ("request", "response"))


def _is_item(fields: _Fields) -> bool:
    """Whether an object is one part, and a message by itself."""
    return _kind(fields) in _READERS and "role" not in fields and _kind(fields) != "text"


def _kind(fields: _Fields) -> str:
    return _string(fields, "type") or ""


def _name(fields: _Fields) -> str | None:
    name = None if _is_item(fields) else fields.get("name")  # an item's name is that of its tool
    if fields.get("role") and isinstance(fields.get("agent_id"), str):
        name = fields["agent_id"]
    elif isinstance(fields.get("author"), str) and fields["author"] not in ("user", "model"):
        name = fields["author"]
    return name if isinstance(name, str) and name else None


def _has_body(fields: _Fields) -> bool:
    return any(key in fields for key in ("content", "parts"))


def _body(fields: _Fields) -> Iterator[Part]:
    """Yield the parts of a message's content, or of the message itself where it is an item of its own."""
    if _is_item(fields):
        yield from _READERS[_kind(fields)](fields)
        return
    if isinstance(fields.get("instructions"), str):
        yield from _texts(fields["instructions"])
    reasoning = next((fields[key] for key in ("reasoning_content", "reasoning") if fields.get(key)), None)
    if isinstance(reasoning, str):
        yield Part(kind="thinking", text=reasoning)
    extra = _mapping(fields.get("additional_kwargs"))
    if isinstance(extra.get("reasoning_content"), str):
        yield Part(kind="thinking", text=extra["reasoning_content"])
    if "parts" in fields:
        yield from _content(fields["parts"])
    elif fields.get("content") is not None:
        yield from _content(fields["content"])
    elif isinstance(fields.get("text"), str):
        yield from _texts(fields["text"])
    elif isinstance(fields.get("summary"), str):
        yield from _texts(fields["summary"])
    yield from _annotations(fields)


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        yield from _texts(content)
    elif isinstance(content, (list, tuple)):
        for each in cast("Sequence[Any]", content):
            if isinstance(each, Mapping):
                yield from _block(_mapping(each))
            elif isinstance(each, str):
                yield from _texts(each)
            elif isinstance(each, bytes):
                yield _bytes(each)
            else:
                yield Part(kind="data", value=each)
    elif isinstance(content, Mapping):
        yield from _block(_mapping(content))
    elif isinstance(content, bytes):
        yield _bytes(content)
    elif content is not None:
        yield Part(kind="data", value=content)


def _block(fields: _Fields) -> Iterator[Part]:
    """Yield the parts of one entry of a list of parts or content blocks."""
    for key in ("type", "part_kind", "kind"):
        kind = fields.get(key)
        if not isinstance(kind, str):
            continue
        reader = _READERS.get(kind)
        if reader is None and kind.startswith("tool-") and "toolCallId" in fields:
            reader = _ui_tool
        if reader is not None:
            yield from reader(fields)
            return
    for key, reader in _UNTYPED.items():
        if fields.get(key) is not None:
            yield from reader(fields)
            return
    yield Part(kind="data", value=dict(fields))


def _texts(text: str) -> list[Part]:
    return [Part(kind="text", text=text)] if text else []


def _text(fields: _Fields) -> Iterator[Part]:
    text = _first(fields, "text", "content", "output_text", "input_text", "refusal", "logs", "message")
    if isinstance(text, str):
        yield from _texts(text)
    elif text is not None:
        yield from _content(text)
    yield from _annotations(fields)


def _thinking(fields: _Fields) -> Iterator[Part]:
    """A thought, as text or as a list of texts; one that the provider encrypted has no words."""
    found = _first(fields, "thinking", "reasoning", "text", "content", "summary")
    if isinstance(found, (list, tuple)):
        entries = [_mapping(each).get("text") for each in cast("Sequence[Any]", found)]
        found = "\n\n".join(each for each in entries if isinstance(each, str))
    yield Part(kind="thinking", text=found if isinstance(found, str) else "")


def _annotations(fields: _Fields) -> Iterator[Part]:
    for each in (*_items(fields.get("annotations")), *_items(fields.get("citations"))):
        yield from _citation(_mapping(each))
    grounding = _mapping(_first(fields, "grounding_metadata", "groundingMetadata"))
    for each in _items(_first(grounding, "grounding_chunks", "groundingChunks")):
        for source in filter(None, map(_mapping, _mapping(each).values())):
            yield from _citation(source)


def _citation(fields: _Fields) -> Iterator[Part]:
    source = {**fields, **_mapping(fields.get("url_citation"))}
    title = _first(source, "title", "document_title", "filename", "cited_text", "text", "content")
    yield Part(
        kind="citation",
        text=title if isinstance(title, str) else "",
        url=_string(source, "url", "uri", "source"),
    )


def _call(fields: _Fields) -> Iterator[Part]:
    function = _mapping(_first(fields, "function", "custom", "function_call", "functionCall"))
    inner = {**fields, **function} if function else fields
    arguments = _first(inner, "arguments", "args", "input", "action", "operation", "code", "queries")
    name = _string(inner, "name", "tool_name", "toolName", "server_tool_name")
    kind = fields.get("type")
    if name is None and isinstance(kind, str):
        name = kind.removesuffix("_call")
    call_id = _string(fields, "call_id", "tool_call_id", "toolCallId", "id") or _string(inner, "id")
    yield Part(kind="tool_call", name=name, call_id=call_id, value=_decoded(arguments))
    output = _first(fields, "output", "outputs", "result", "results", "error")
    if output is not None and kind != "function_call":  # the provider ran the tool itself
        yield _result(fields, output, name=name, call_id=call_id)


def _calls(fields: _Fields) -> Iterator[Part]:
    """Yield the calls that stand beside the content instead of in it."""
    seen = {part.call_id for part in _body(fields) if part.kind == "tool_call"}
    for each in (*_items(fields.get("tool_calls")), *_items(fields.get("invalid_tool_calls"))):
        if isinstance(each, Mapping):
            for part in _call(_mapping(each)):
                if part.call_id is None or part.call_id not in seen:
                    yield part
        else:
            yield Part(kind="data", value=each)
    call = fields.get("function_call")
    if isinstance(call, Mapping) and not seen:
        yield from _call(_mapping(call))


def _tool_output(fields: _Fields) -> Iterator[Part]:
    output = _first(fields, "content", "output", "response", "result", "return_value", "tools", "outcome")
    response = _mapping(_first(fields, "function_response", "functionResponse"))
    if response:
        fields, output = {**fields, **response}, response.get("response")
    yield _result(fields, output)


def _result(fields: _Fields, output: Any, *, name: str | None = None, call_id: str | None = None) -> Part:
    """Return the result of a tool: its text, and its value where it is more than text."""
    is_error = bool(fields.get("is_error") or fields.get("isError") or fields.get("error"))
    is_error = is_error or fields.get("status") in ("error", "failed")
    is_error = is_error or fields.get("outcome") in ("denied", "failed", "retried")
    wrapped = _mapping(output)
    if _kind(wrapped).endswith("_error"):  # of a tool that the provider runs
        is_error = True
    elif isinstance(wrapped.get("type"), str) and "value" in wrapped:  # the AI SDK's typed outputs
        is_error = is_error or wrapped["type"].startswith("error")
        output = wrapped["value"]
    elif len(wrapped) == 1 and "result" in wrapped:  # Gemini wraps what is not an object
        output = wrapped["result"]
    elif len(wrapped) == 1 and "error" in wrapped:
        is_error, output = True, wrapped["error"]
    inner = list(_content(output)) if isinstance(output, (str, bytes, list, tuple)) else []
    is_text = bool(inner) and all(part.kind == "text" for part in inner)
    is_mixed = not is_text and any(part.kind != "data" for part in inner)
    return Part(
        kind="tool_result",
        name=name or _string(fields, "name", "tool_name", "toolName"),
        call_id=call_id or _string(fields, "tool_use_id", "tool_call_id", "toolCallId", "call_id", "id"),
        text="\n".join(part.text for part in inner) if is_text else "",
        value=None if is_text or is_mixed or output in ("", [], None) else output,
        parts=inner if is_mixed else [],
        is_error=is_error,
    )


def _result_of(fields: _Fields, parts: Sequence[Part]) -> Part:
    """Return the content of a tool's message as its result."""
    is_text = all(part.kind == "text" for part in parts)
    return _result(
        fields, "\n".join(part.text for part in parts) if is_text else _first(fields, "content", "parts")
    )


def _command(fields: _Fields) -> Iterator[Part]:
    """Something that Codex did: a command or a change of files, and what came of it."""
    name = _kind(fields)
    call_id = _string(fields, "id")
    value = {key: fields[key] for key in ("command", "changes", "query", "items") if key in fields}
    yield Part(kind="tool_call", name=name, call_id=call_id, value=value)
    output = fields.get("aggregated_output")
    if output is not None and fields.get("status") != "in_progress":
        is_error = fields.get("exit_code") not in (None, 0)
        yield _result({**fields, "is_error": is_error}, output, name=name, call_id=call_id)


def _ui_tool(fields: _Fields) -> Iterator[Part]:
    """A tool of the AI SDK's interface messages: the call, and its result once there is one."""
    kind = str(fields.get("type"))
    inner = _mapping(fields.get("toolInvocation")) or fields
    name = _string(inner, "toolName") or kind.removeprefix("tool-")
    call_id = _string(inner, "toolCallId")
    yield Part(kind="tool_call", name=name, call_id=call_id, value=_decoded(_first(inner, "input", "args")))
    output = _first(inner, "output", "result", "errorText")
    if output is not None:
        yield _result({"is_error": "errorText" in inner}, output, name=name, call_id=call_id)


def _image(fields: _Fields) -> Iterator[Part]:
    yield _media(fields, "image")


def _file(fields: _Fields) -> Iterator[Part]:
    found = _media(fields, "file")
    if found.media_type is not None and found.media_type.startswith("image/"):
        found = msgspec.structs.replace(found, kind="image")
    yield found


def _bytes(data: bytes, *, media_type: str | None = None, name: str | None = None) -> Part:
    """Return stored bytes: an image, which their beginning tells, or a file."""
    found = media_type or next((kind for start, kind in _BEGINNINGS if start.match(data)), None)
    kind: PartKind = "image" if found is not None and found.startswith("image/") else "file"
    if len(data) > _MAX_INLINE_BYTES:
        return Part(kind=kind, text=f"{len(data):,} bytes", name=name, media_type=found)
    url = f"data:{found or 'application/octet-stream'};base64,{b64encode(data).decode()}"
    return Part(kind=kind, url=url, name=name, media_type=found)


def _media(fields: _Fields, kind: PartKind) -> Part:
    """Return an image or file. Bytes become a ``data:`` URL; a provider's file id stays in ``text``."""
    inner: dict[str, Any] = {**fields}
    for key in (
        "source",
        "image_url",
        "image",
        "file",
        "input_audio",
        "inline_data",
        "inlineData",
        "file_data",
        "fileData",
        "content",
    ):
        value = fields.get(key)
        if isinstance(value, Mapping):
            inner.update(_mapping(value))
        elif key in ("image_url", "image") and isinstance(value, str):
            inner["url" if _ADDRESS.match(value) else "data"] = value
        elif key in ("image", "file") and isinstance(value, bytes):
            inner["data"] = value
    media_type = _string(inner, "media_type", "mediaType", "mime_type", "mimeType")
    data = _first(inner, "data", "base64", "file_data", "content", "result")
    if isinstance(data, Mapping):  # the AI SDK's tagged data
        tagged = _mapping(data)
        data = tagged.get("data")
        inner = {"url": str(tagged["url"]), **inner} if "url" in tagged else inner
    url = _string(inner, "url", "uri", "file_uri", "fileUri", "file_url")
    if url is None and isinstance(data, bytes):
        name = _string(inner, "filename", "name", "title")
        return _bytes(data, media_type=media_type or _TYPES.get(kind), name=name)
    if url is None and isinstance(data, str):
        url = data if _ADDRESS.match(data) else f"data:{media_type or _TYPES.get(kind, '')};base64,{data}"
    return Part(
        kind=kind,
        text=_string(inner, "file_id", "identifier") or "" if url is None else "",
        name=_string(inner, "filename", "name", "title"),
        url=url,
        media_type=media_type,
        value=dict(fields) if url is None and data is not None and not isinstance(data, str) else None,
    )


def _code(fields: _Fields) -> Iterator[Part]:
    code = _mapping(_first(fields, "executable_code", "executableCode"))
    yield Part(kind="tool_call", name="code", value=code.get("code"), call_id=_string(code, "id"))


def _code_result(fields: _Fields) -> Iterator[Part]:
    found = _mapping(_first(fields, "code_execution_result", "codeExecutionResult"))
    outcome = str(found.get("outcome", "")).upper().rpartition(".")[2]  # of an enum as well
    is_error = outcome not in ("OUTCOME_OK", "OK", "")
    yield _result({"is_error": is_error}, found.get("output", ""), name="code")


def _gemini_text(fields: _Fields) -> Iterator[Part]:
    text = fields["text"]
    if isinstance(text, str) and (text or fields.get("thought")):
        yield Part(kind="thinking" if fields.get("thought") is True else "text", text=text)


def _retry(fields: _Fields) -> Iterator[Part]:
    content = fields.get("content")
    text = content if isinstance(content, str) else ""
    value = None if isinstance(content, str) else content
    name = _string(fields, "tool_name")
    if name is None:
        yield Part(kind="error", text=text, value=value)
    else:
        call_id = _string(fields, "tool_call_id")
        yield Part(kind="tool_result", name=name, call_id=call_id, text=text, value=value, is_error=True)


def _error(fields: _Fields) -> Iterator[Part]:
    """Yield the error that a message reports instead of, or before, its content."""
    error = _first(fields, "error", "error_message", "errorMessage")
    if _is_item(fields):
        return  # an item of its own reports it with its result
    if isinstance(error, str):
        yield Part(kind="error", text=error)
    elif isinstance(error, Mapping):
        found = _mapping(error)
        yield Part(kind="error", text=_string(found, "message", "type") or "", value=dict(found))


def _error_block(fields: _Fields) -> Iterator[Part]:
    text = _string(fields, "message", "text", "error", "errorText", "content")
    yield Part(kind="error", text=text or "", value=None if text else dict(fields))


def _compaction(fields: _Fields) -> Iterator[Part]:
    found = _string(fields, "summary", "content", "text")
    yield Part(kind="text", text=found) if found else Part(kind="data", value=dict(fields))


def _nested(fields: _Fields) -> Iterator[Part]:
    yield from _content(fields.get("content"))


def _nothing(_: _Fields) -> Iterator[Part]:
    yield from ()


_READERS: Final[dict[str, _Reader]] = {
    kind: reader
    for reader, kinds in {
        _text: """
            agent_message input_text logs output_text reasoning_text refusal summary_text text user_message
        """,
        _command: "command_execution file_change todo_list web_search",
        _thinking: "agent_reasoning reasoning redacted_thinking thinking",
        _call: """
            apply_patch_call builtin-tool-call code_interpreter_call computer_call custom_tool_call
            file_search_call function_call invalid_tool_call load_capability_call local_shell_call
            mcp_approval_request mcp_call mcp_tool_call mcp_tool_use native-tool-call server_tool_call
            server_tool_use shell_call tool-call tool_call tool_search_call tool_use web_search_call
        """,
        _tool_output: """
            apply_patch_call_output bash_code_execution_tool_result builtin-tool-return
            code_execution_tool_result computer_call_output custom_tool_call_output function_call_output
            local_shell_call_output mcp_approval_response mcp_list_tools mcp_tool_result native-tool-return
            server_tool_call_response server_tool_result shell_call_output
            text_editor_code_execution_tool_result tool-result tool-return tool_call_response tool_result
            tool_search_output web_fetch_tool_result web_search_tool_result
        """,
        _image: "image image-url image_generation_call image_url input_image",
        _file: """
            audio audio-url binary blob container_upload document document-url file input_audio input_file
            media reasoning-file speech uri video video-url
        """,
        _citation: """
            citation search_result source source-document source-url url_citation web_search_result
        """,
        _ui_tool: "dynamic-tool tool-invocation",
        _error_block: "error invalid_request",
        _compaction: "compaction context_compaction summary",
        _nested: "instruction message system-prompt text-content user-prompt",
        _retry: "retry-feedback retry-prompt",
        _nothing: "step-finish step-start",
    }.items()
    for kind in kinds.split()
}
"""How an entry is read, by its ``type``, ``part_kind`` or ``kind``."""

_UNTYPED: Final[dict[str, _Reader]] = {
    "function_call": _call,
    "functionCall": _call,
    "function_response": _tool_output,
    "functionResponse": _tool_output,
    "inline_data": _file,
    "inlineData": _file,
    "file_data": _file,
    "fileData": _file,
    "executable_code": _code,
    "executableCode": _code,
    "code_execution_result": _code_result,
    "codeExecutionResult": _code_result,
    "text": _gemini_text,
}
"""How a part of Gemini is read, by the field that it has."""

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
"""How a URL begins, and base64 never does."""
_TYPES: Final = {"image": "image/png"}
_MAX_INLINE_BYTES: Final = 8_000_000
"""Stored bytes up to this size are shown; of larger ones, only the size."""
_BEGINNINGS: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"%PDF-"), "application/pdf"),
)
"""How files of some types begin."""


def _line(part: Part) -> str:
    match part.kind:
        case "text":
            return part.text
        case "thinking":
            return f"thinking: {part.text}" if part.text else "thinking (not shown by the provider)"
        case "tool_call":
            arguments = part.value if isinstance(part.value, str) else _json(part.value)
            return f"→ {part.name or 'tool'}({arguments})"
        case "tool_result":
            found = part.text or "\n".join(map(_line, part.parts)) or _json(part.value)
            return f"error: {found}" if part.is_error else found
        case "error":
            return f"error: {part.text or _json(part.value)}"
        case "citation":
            return f"[{part.text}]({part.url})" if part.url else f"[{part.text}]"
        case "image" | "file":
            return f"[{' '.join(filter(None, (part.kind, part.name or part.media_type or part.text)))}]"
        case _:
            return _json(part.value)


def _decoded(arguments: Any) -> Any:
    """Return arguments that a provider wrote as JSON text as their value; other text stays."""
    if isinstance(arguments, str) and arguments[:1] in ("{", "["):
        try:
            return msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return arguments
    return arguments


def _json(value: Any) -> str:
    if value is None:
        return ""
    return msgspec.json.encode(value, enc_hook=str).decode()


def _first(fields: _Fields, *keys: str) -> Any:
    return next((fields[key] for key in keys if fields.get(key) is not None), None)


def _string(fields: _Fields, *keys: str) -> str | None:
    return next((fields[key] for key in keys if isinstance(fields.get(key), str) and fields[key]), None)


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, Mapping) else {}


def _items(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
