"""The wire formats of model providers: which request is a call of a model, what was answered, and how to
change the model, the system prompt or a parameter of a request.

Four formats are read: OpenAI's chat completions and Responses, Anthropic's messages, and Gemini's contents.
Others speak one of them: LiteLLM, vLLM, Ollama, Mistral, Groq, OpenRouter and Azure that of OpenAI, Claude on
Bedrock and Vertex that of Anthropic. **Invariant:** reading never fails. What is not understood has no
reply, and is recorded and replayed all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from treering.runs.exchanges import Exchange
from treering.runs.messages import Part, message_text, read_message

Format = Literal["chat", "responses", "anthropic", "gemini"]

_FORMATS: Final[tuple[tuple[Format, re.Pattern[str]], ...]] = (
    ("chat", re.compile(r"/chat/completions$|/api/chat$")),
    ("responses", re.compile(r"/responses$")),
    (
        "anthropic",
        re.compile(r"/v1/messages$|/messages$|:(stream)?[rR]awPredict$|/invoke(-with-response-stream)?$"),
    ),
    ("gemini", re.compile(r":(generateContent|streamGenerateContent)$")),
)
_OTHERS: Final = re.compile(
    r"/(completions|embeddings|moderations|rerank|count_tokens|speech|transcriptions|translations|generations|edits"
    r"|converse|converse-stream|api/generate|api/embed|conversations|input_tokens|compact)$"
    r"|:(countTokens|embedContent|batchEmbedContents|embedText|predict)$"
)
_AGENTS: Final[dict[Format, str]] = {
    "chat": "openai",
    "responses": "openai",
    "anthropic": "anthropic",
    "gemini": "google",
}
_MODEL_IN_PATH: Final = re.compile(r"/models/([^/:]+)")
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_NOTHING: Final[dict[str, Any]] = {}
_EMPTY: Final[list[Any]] = []
_ONE: Final[list[Any]] = [{}]
_GENERATION_KEYS: Final = frozenset(
    {"temperature", "topP", "topK", "maxOutputTokens", "seed", "stopSequences"}
)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered."""

    message: Any
    """The answer as the provider writes a message; a stream's pieces are put together."""
    model: str | None = None
    usage: dict[str, Any] | None = None

    @property
    def parts(self) -> list[Part]:
        """The answer as texts, thoughts and tool calls."""
        message: Any = self.message
        items = cast("list[Any]", message) if isinstance(message, list) else [message]
        return [part for item in items for part in read_message(item).parts]

    @property
    def text(self) -> str:
        """What it says, without thoughts and calls."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def tool_calls(self) -> list[Part]:
        """The tools that it asks for."""
        return [part for part in self.parts if part.kind == "tool_call"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to change in requests to models: model, system prompt, and parameters by their names."""

    model: str | None = None
    prompt: str | None = None
    parameters: dict[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed."""
        return self.model is None and self.prompt is None and not self.parameters


def is_model_call(method: str, path: str) -> bool:
    """Whether a request goes to a model."""
    return method == "POST" and (format_of(path) is not None or _OTHERS.search(path) is not None)


def format_of(path: str) -> Format | None:
    """Return the format of a request that asks a model for an answer."""
    return next((name for name, pattern in _FORMATS if pattern.search(path)), None)


def provider_of(path: str) -> str:
    """Return a name for the provider: whose format it is."""
    form = format_of(path)
    return "model" if form is None else _AGENTS[form]


def model_of(path: str, body: Any) -> str | None:
    """Return the model that a request asks for."""
    found = cast("Mapping[str, Any]", body).get("model") if isinstance(body, Mapping) else None
    if isinstance(found, str):
        return found
    match = _MODEL_IN_PATH.search(path)
    return None if match is None else match.group(1)


def messages_of(path: str, body: Any) -> list[Any]:
    """Return the messages of a request, with its system prompt in front."""
    if not isinstance(body, Mapping):
        return []
    fields = cast("Mapping[str, Any]", body)
    given = fields.get({"responses": "input", "gemini": "contents"}.get(format_of(path) or "", "messages"))
    system = fields.get("system") or fields.get("instructions") or fields.get("systemInstruction")
    messages: list[Any] = list(cast("list[Any]", given)) if isinstance(given, list) else []
    if isinstance(given, str):
        messages = [{"role": "user", "content": given}]
    if system is not None:
        parts = cast("Mapping[str, Any]", system).get("parts") if isinstance(system, Mapping) else system
        messages.insert(0, {"role": "system", "content": parts})
    return messages


def apply_settings(path: str, body: dict[str, Any], settings: Settings) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request with the settings in it."""
    form = format_of(path)
    if settings.is_empty or form is None:
        return path, body
    body = dict(body)
    if settings.model is not None:
        if "model" in body or form != "gemini":
            body["model"] = settings.model
        path = _MODEL_IN_PATH.sub(f"/models/{settings.model}", path)
    if settings.prompt is not None:
        _set_prompt(form, body, settings.prompt)
    for name, value in settings.parameters.items():
        if form == "gemini" and name in _GENERATION_KEYS:
            body["generationConfig"] = {**(body.get("generationConfig") or _NOTHING), name: value}
        else:
            body[name] = value
    return path, body


def _set_prompt(form: Format, body: dict[str, Any], prompt: str) -> None:
    if form == "anthropic":
        body["system"] = prompt
    elif form == "gemini":
        body["systemInstruction"] = {"parts": [{"text": prompt}]}
        body.pop("system_instruction", None)
    elif form == "responses" and (body.get("instructions") is not None or not _has_system(body.get("input"))):
        body["instructions"] = prompt
    else:
        key = "messages" if form == "chat" else "input"
        messages: list[Any] = list(body.get(key) or _EMPTY)
        if _has_system(messages):
            messages[0] = {**messages[0], "content": prompt}
        else:
            messages.insert(0, {"role": "system", "content": prompt})
        body[key] = messages


def _has_system(messages: Any) -> bool:
    if not isinstance(messages, list) or not messages:
        return False
    first: Any = cast("list[Any]", messages)[0]
    return isinstance(first, Mapping) and cast("Mapping[str, Any]", first).get("role") in _SYSTEM_ROLES


# Replies


def read_reply(path: str, answer: Any) -> Reply | None:
    """Return what a model answered, whole or streamed; ``None`` if that is not understood, or an error."""
    form = format_of(path)
    if form is None or not isinstance(answer, str) or not answer.strip():
        return None
    try:
        return _READERS[form](_documents(answer))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, msgspec.DecodeError):
        return None


def _documents(answer: str) -> list[Any]:
    """The JSON documents of an answer: one, or those of a stream of events."""
    text = answer.lstrip()
    if text.startswith("{"):
        try:
            return [msgspec.json.decode(text)]
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    if text.startswith("["):
        return msgspec.json.decode(text)
    return list(_events(text))


def _events(text: str) -> Iterator[Any]:
    for event in re.split(r"\r?\n\r?\n", text):
        data = "\n".join(
            line[5:].removeprefix(" ") for line in event.splitlines() if line.startswith("data:")
        )
        if data and data != "[DONE]":
            yield msgspec.json.decode(data)


def _read_chat(documents: Sequence[Any]) -> Reply | None:
    first = documents[0]
    if "message" in first and "choices" not in first:  # Ollama
        return _read_ollama(documents)
    if first.get("object") != "chat.completion.chunk" and "message" in (first.get("choices") or _ONE)[0]:
        return Reply(
            message=first["choices"][0]["message"], model=first.get("model"), usage=first.get("usage")
        )
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    model: str | None = None
    usage: dict[str, Any] | None = None
    for chunk in documents:
        if "error" in chunk:
            return None
        model, usage = chunk.get("model") or model, chunk.get("usage") or usage
        for choice in (chunk.get("choices") or _EMPTY)[:1]:
            _add_delta(message, calls, choice.get("delta") or _NOTHING)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return Reply(message=message, model=model, usage=usage)


def _add_delta(message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            for piece in value or _EMPTY:
                call = calls.setdefault(
                    piece.get("index", 0),
                    {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
                )
                call["id"] = piece.get("id") or call["id"]
                function = piece.get("function") or _NOTHING
                call["function"]["name"] += function.get("name") or ""
                call["function"]["arguments"] += function.get("arguments") or ""
        elif key == "content" and (isinstance(value, list) or isinstance(message.get(key), list)):
            parts = message[key] = _parts_of(message.get(key))
            for part in _parts_of(value):
                _add_part(parts, part)
        elif isinstance(value, str) and key != "role":
            message[key] = (message.get(key) or "") + value


def _parts_of(content: Any) -> list[Any]:
    """Return content as parts, which Mistral's models that think stream, among texts."""
    if isinstance(content, list):
        return cast("list[Any]", content)
    return [{"type": "text", "text": content}] if content else []


def _add_part(parts: list[Any], part: dict[str, Any]) -> None:
    last: dict[str, Any] = parts[-1] if parts else {}
    kind = part.get("type")
    if kind == "text" == last.get("type"):
        last["text"] += part["text"]
    elif kind == "thinking" == last.get("type"):
        for each in part["thinking"]:
            _add_part(last["thinking"], each)
    else:
        parts.append(part)


def _read_ollama(documents: Sequence[Any]) -> Reply:
    message = dict(documents[-1].get("message") or _NOTHING)
    message["content"] = "".join((each.get("message") or _NOTHING).get("content") or "" for each in documents)
    calls: list[Any] = []
    for each in documents:
        calls += (each.get("message") or _NOTHING).get("tool_calls") or _EMPTY
    if calls:
        message["tool_calls"] = calls
    last = documents[-1]
    usage = {"input": last.get("prompt_eval_count") or 0, "output": last.get("eval_count") or 0}
    return Reply(message=message, model=last.get("model"), usage=usage)


def _read_responses(documents: Sequence[Any]) -> Reply | None:
    final = documents[-1]
    for document in documents:
        if document.get("type") in {"response.completed", "response.incomplete"}:
            final = document["response"]
    if "output" not in final:
        return None
    return Reply(message=final["output"], model=final.get("model"), usage=final.get("usage"))


def _read_anthropic(documents: Sequence[Any]) -> Reply | None:
    first = documents[0]
    if first.get("type") == "message":
        return Reply(
            message={"role": "assistant", "content": first["content"]},
            model=first.get("model"),
            usage=first.get("usage"),
        )
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    model: str | None = None
    usage: dict[str, Any] = {}
    for event in documents:
        kind = event.get("type")
        if kind == "message_start":
            model = event["message"].get("model")
            usage |= event["message"].get("usage") or _NOTHING
        elif kind == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            _add_block_delta(blocks[event["index"]], inputs, event["index"], event["delta"])
        elif kind == "message_delta":
            usage |= {
                name: count for name, count in (event.get("usage") or _NOTHING).items() if count is not None
            }
        elif kind == "error":
            return None
    for index, text in inputs.items():
        blocks[index]["input"] = msgspec.json.decode(text) if text else {}
    content = [blocks[index] for index in sorted(blocks)]
    return Reply(message={"role": "assistant", "content": content}, model=model, usage=usage or None)


def _add_block_delta(
    block: dict[str, Any], inputs: dict[int, str], index: int, delta: dict[str, Any]
) -> None:
    kind = delta.get("type")
    if kind == "input_json_delta":
        inputs[index] = inputs.get(index, "") + delta["partial_json"]
        return
    for key in ("text", "thinking", "signature"):
        if key in delta:
            block[key] = (block.get(key) or "") + delta[key]


def _read_gemini(documents: Sequence[Any]) -> Reply | None:
    parts: list[Any] = []
    model: str | None = None
    usage: dict[str, Any] | None = None
    for document in documents:
        for candidate in (document.get("candidates") or _EMPTY)[:1]:
            for part in (candidate.get("content") or _NOTHING).get("parts") or _EMPTY:
                if parts and set(part) == {"text"} == set(parts[-1]):
                    parts[-1] = {"text": parts[-1]["text"] + part["text"]}
                else:
                    parts.append(part)
        model = document.get("modelVersion") or model
        usage = document.get("usageMetadata") or usage
    if not parts and usage is None:
        return None
    return Reply(
        message={"role": "model", "parts": parts},
        model=model,
        usage=None if usage is None else _gemini_usage(usage),
    )


def _gemini_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    cached = usage.get("cachedContentTokenCount") or 0
    thoughts = usage.get("thoughtsTokenCount") or 0
    return {
        "input": max((usage.get("promptTokenCount") or 0) - cached, 0),
        "cache_read": cached,
        "output": (usage.get("candidatesTokenCount") or 0) + thoughts,
        "reasoning": thoughts,
    }


_READERS: Final = {
    "chat": _read_chat,
    "responses": _read_responses,
    "anthropic": _read_anthropic,
    "gemini": _read_gemini,
}


def answer_text(answer: Any) -> str:
    """Return a recorded message or list of messages as text."""
    items = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
    return "".join(message_text(read_message(item)) for item in items)


# Paths: a rerun works in another folder


def replacer(moved: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces the names of folders in a text.

    An absolute name is replaced wherever it is a whole name, also as Claude Code writes it in the name of a
    folder of its own (``projects/-home-me-work``); a relative one (``work``) where it begins the name of
    something in the folder (``work/report.md``, ``./work/report.md``).
    """
    if not moved:
        return lambda text: text
    places, names = dict(moved), list[str]()
    for name in sorted(moved, key=len, reverse=True):
        if name.startswith("/"):
            places[_in_one_word(name)] = _in_one_word(moved[name])
            names.append(rf"(?:{re.escape(name)}|(?<=/){re.escape(_in_one_word(name))})(?![\w-]|\.\w)")
        else:
            names.append(rf"(?<![\w./~-])(?:\./)?{re.escape(name)}(?=/)")
    pattern = re.compile("|".join(names))
    return lambda text: pattern.sub(lambda found: places[found[0].removeprefix("./")], text)


def _in_one_word(path: str) -> str:
    return re.sub("[^a-zA-Z0-9]", "-", path)


def translate(value: Any, replace: Callable[[str], str]) -> Any:
    """Return a value with each text in it replaced."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, Mapping):
        return {name: translate(each, replace) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [translate(each, replace) for each in cast("Sequence[Any]", value)]
    return value


def translate_answer(answer: str, replace: Callable[[str], str]) -> str:
    """Return an answer with each text in it replaced; the same answer, if that changes nothing.

    A text that comes in the pieces of a stream is replaced as a whole, and is then in its first piece.
    """
    stripped = answer.lstrip()
    if stripped.startswith(("{", "[")):
        return replace(answer)  # JSON writes paths as they are
    events = re.split(r"(\r?\n\r?\n)", answer)
    parsed: list[tuple[int, Any]] = []
    whole: dict[Any, str] = {}
    for index, event in enumerate(events):
        data = "\n".join(line[5:].strip() for line in event.splitlines() if line.startswith("data:"))
        if data.startswith("{"):
            try:
                parsed.append((index, msgspec.json.decode(data)))
            except (msgspec.DecodeError, UnicodeDecodeError):
                return replace(answer)
    for _, document in parsed:
        for slot, holder, key in _streamed(document):
            whole[slot] = whole.get(slot, "") + holder[key]
    changed = {slot: text for slot, given in whole.items() if (text := replace(given)) != given}
    if not changed and replace(answer) == answer:
        return answer
    for index, document in parsed:
        for slot, holder, key in _streamed(document):
            if slot in changed:
                holder[key], whole[slot] = (changed[slot], "") if whole[slot] else ("", "")
        lines = [line for line in events[index].splitlines() if not line.startswith("data:")]
        data = msgspec.json.encode(translate(document, replace)).decode()
        events[index] = "\n".join([*lines, f"data: {data}"])
    return "".join(events)


def moved_exchange(exchange: Exchange, moved: Mapping[str, str]) -> Exchange:
    """Return an exchange that names other folders."""
    return rewrite_exchange(exchange, replacer(moved))


def rewrite_exchange(exchange: Exchange, replace: Callable[[str], str]) -> Exchange:
    """Return an exchange with each text in its request and answer replaced."""
    answer = exchange.answer
    if isinstance(answer, str) and exchange.kind == "http":
        answer = translate_answer(answer, replace)
    else:
        answer = translate(answer, replace)
    return msgspec.structs.replace(
        exchange,
        request=translate(exchange.request, replace),
        answer=answer,
        pieces=exchange.pieces if answer == exchange.answer else (),
    )


def _streamed(document: Any) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """Yield the pieces of texts in one event of a stream: which text, and where its piece is."""
    kind = document.get("type")
    if kind == "content_block_delta":
        delta = document["delta"]
        for key in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(key), str):
                yield (document["index"], key), delta, key
    elif isinstance(kind, str) and kind.endswith(".delta") and isinstance(document.get("delta"), str):
        yield (kind, document.get("item_id"), document.get("output_index")), document, "delta"
    for choice in document.get("choices") or _EMPTY:
        delta = choice.get("delta") or _NOTHING
        if isinstance(delta.get("content"), str):
            yield (choice.get("index"), "content"), delta, "content"
        elif isinstance(delta.get("content"), list):
            for part in delta["content"]:
                for each in part.get("thinking") or [part]:
                    if isinstance(each.get("text"), str):
                        yield (choice.get("index"), part.get("type")), each, "text"
        for call in delta.get("tool_calls") or _EMPTY:
            function = call.get("function") or _NOTHING
            if isinstance(function.get("arguments"), str):
                yield (choice.get("index"), call.get("index")), function, "arguments"
