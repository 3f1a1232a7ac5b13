"""A server that speaks the wire formats of OpenAI (chat and Responses), Anthropic, Gemini and Mistral.

The prompt says what its model will do: ``PLAN`` and a JSON list of turns, each with a text and tool calls.
The turn is the number of replies in the request. A model named ``other-3`` departs from the plan at its
fourth turn. Ids, times and the sizes of pieces are random, so an answer never comes twice: who gets the same
bytes again got them from a recording.
"""

from __future__ import annotations

import gzip
import json
import random
import secrets
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that are made often: over plain HTTP it is not used, and nothing reads all certificates."""
CHANCE = random.SystemRandom()
"""Not the functions of `random`, which a replay of this process gives the values of its recording."""


def plan(*turns: tuple[str, list[tuple[str, dict[str, Any]]]] | str) -> str:
    """The prompt that makes a model say and call this, turn by turn."""
    whole = [(turn, []) if isinstance(turn, str) else turn for turn in turns]
    return "PLAN " + json.dumps([{"text": text, "calls": calls} for text, calls in whole])


class Provider:
    """The server while it runs: its address, and the requests that it got."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.fails: list[int] = []
        """Statuses to answer with before any real answer."""
        self.lock = Lock()

    @property
    def count(self) -> int:
        return len(self.asked)


@contextmanager
def provider() -> Iterator[Provider]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    running = Provider(server.server_port)
    server.provider = running  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_HEAD(self) -> None:
        self._send(b"", "text/plain")

    def do_GET(self) -> None:
        self.do_HEAD()

    def do_POST(self) -> None:
        running: Provider = self.server.provider  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.partition("?")[0]
        with running.lock:
            running.asked.append((self.path, body))
            running.headers.append({name.lower(): value for name, value in self.headers.items()})
            failed = running.fails.pop(0) if running.fails else None
        if failed is not None:
            self._send(
                json.dumps({"error": {"message": f"try again {secrets.token_hex(16)}"}}).encode(),
                "application/json",
                failed,
            )
            return
        if path.endswith("/count_tokens"):
            self._send(b'{"input_tokens": 7}', "application/json")
            return
        answer, events = answers(path, body)
        if events is None:
            self._send(json.dumps(answer).encode(), "application/json")
        else:
            self._stream(events)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        packed = "gzip" in self.headers.get("accept-encoding", "") and len(data) > 0
        if packed:
            data = gzip.compress(data)
        self.send_response(status)
        self.send_header("content-type", kind)
        if packed:
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(data)))
        self.send_header("connection", "close")  # not every SDK closes what it leaves open
        self.send_header("x-request-id", f"req_{secrets.token_hex(16)}")
        self.send_header("set-cookie", "session=server-secret")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: list[str]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        data = "".join(events).encode()
        while data:  # pieces end anywhere, also within a character
            size = CHANCE.randint(1, 400)
            piece, data = data[:size], data[size:]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def answers(path: str, body: dict[str, Any]) -> tuple[Any, list[str] | None]:
    """The answer to a request: whole, or as the events of a stream."""
    if path.endswith("/chat/completions"):
        message = _turn(
            body["model"], body["messages"], sum(m["role"] == "assistant" for m in body["messages"])
        )
        return (_mistral if path.startswith("/mistral/") else _chat)(body, *message)
    if path.endswith("/responses"):
        items = (
            body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        )
        return _responses(body, *_turn(body["model"], items, _replies_in(items)))
    if path.endswith("/messages"):
        turn = sum(m["role"] == "assistant" for m in body["messages"])
        return _anthropic(body, *_turn(body["model"], body["messages"], turn))
    model = path.rpartition("/models/")[2].partition(":")[0]
    turn = sum(m.get("role") == "model" for m in body["contents"])
    return _gemini(path, model, *_turn(model, body["contents"], turn))


def _turn(model: str, messages: Any, turn: int) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    text = _texts(messages)
    found = text.find("PLAN ")
    if found < 0:
        return "no plan", []
    turns, _ = json.JSONDecoder().raw_decode(text[found + 5 :])
    if turn >= len(turns):
        return "nothing is left of the plan", []
    said, calls = turns[turn]["text"], turns[turn]["calls"]
    if model.startswith("other-") and turn >= int(model.removeprefix("other-")):
        return f"{said} But I am another model.", []
    return said, calls


def _texts(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(_texts, value))
    if isinstance(value, dict):
        return " ".join(_texts(each) for name, each in value.items() if name in ("content", "text", "parts"))
    return ""


def _replies_in(items: list[Any]) -> int:
    """How many replies there are among the items of the Responses API: runs of what the model wrote."""
    count = 0
    was_model = False
    for item in items:
        is_model = item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")
        count += is_model and not was_model
        was_model = is_model
    return count


def _pieces(text: str) -> list[str]:
    pieces = []
    while text:
        size = CHANCE.randint(1, 6)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def _sse(data: Any, name: str | None = None) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


def _chat(body: dict[str, Any], text: str, calls: list[Any]) -> tuple[Any, list[str] | None]:
    head = {"id": f"chatcmpl-{secrets.token_hex(16)}", "created": int(time.time()), "model": body["model"]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    made = [
        {
            "id": f"call_{secrets.token_hex(16)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for name, given in calls
    ]
    reason = "tool_calls" if made else "stop"
    if not body.get("stream"):
        message = {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}, None
    head["object"] = "chat.completion.chunk"

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        return _sse({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": piece}) for piece in _pieces(text)]
    for index, call in enumerate(made):
        first = {"index": index, **call, "function": {"name": call["function"]["name"], "arguments": ""}}
        events.append(chunk({"tool_calls": [first]}))
        events += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in _pieces(call["function"]["arguments"])
        ]
    events.append(chunk({}, reason))
    events.append(_sse({**head, "choices": [], "usage": usage}))
    return None, [*events, _sse("[DONE]")]


def _mistral(body: dict[str, Any], text: str, calls: list[Any]) -> tuple[Any, list[str] | None]:
    """Mistral's own form of chat completions: calls come whole, with the usage; its thinkers have parts."""
    head = {"id": secrets.token_hex(16), "created": int(time.time()), "model": body["model"]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    made = [
        {
            "id": secrets.token_hex(5)[:9],
            "function": {"name": name, "arguments": json.dumps(given)},
            "index": at,
        }
        for at, (name, given) in enumerate(calls)
    ]
    reason = "tool_calls" if made else "stop"

    def parts(kind: str, piece: str) -> Any:
        if not body["model"].startswith("magistral-"):
            return piece if kind == "text" else ""
        inner = {"type": "text", "text": piece}
        return [inner if kind == "text" else {"type": "thinking", "thinking": [inner]}]

    thought = parts("thinking", "I think.")
    if not body.get("stream"):
        message = {"role": "assistant", "tool_calls": made or None, "content": thought + parts("text", text)}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}, None
    head["object"] = "chat.completion.chunk"

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        return _sse({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})

    events = [chunk({"role": "assistant", "content": thought})]
    events += [chunk({"content": parts("text", piece)}) for piece in _pieces(text)]
    events.append(chunk({"content": ""} | ({"tool_calls": made} if made else {}), reason, usage=usage))
    return None, [*events, _sse("[DONE]")]


def _responses(body: dict[str, Any], text: str, calls: list[Any]) -> tuple[Any, list[str] | None]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    output: list[dict[str, Any]] = [
        {
            "id": f"msg_{secrets.token_hex(16)}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    ]
    output += [
        {
            "id": f"fc_{secrets.token_hex(16)}",
            "call_id": f"call_{secrets.token_hex(16)}",
            "type": "function_call",
            "name": name,
            "arguments": json.dumps(given),
            "status": "completed",
        }
        for name, given in calls
    ]
    response = {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": time.time(),
        "model": body["model"],
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 110,
        },
    }
    if not body.get("stream"):
        return response, None
    numbered: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": {**response, "status": "in_progress", "output": [], "usage": None}})
    ]
    for index, item in enumerate(output):
        numbered.append(
            ("response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress"}})
        )
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            numbered.append(("response.content_part.added", {**place, "part": {**part, "text": ""}}))
            numbered += [
                ("response.output_text.delta", {**place, "delta": piece, "logprobs": []})
                for piece in _pieces(text)
            ]
            numbered.append(("response.output_text.done", {**place, "text": text, "logprobs": []}))
            numbered.append(("response.content_part.done", {**place, "part": part}))
        else:
            place = {"item_id": item["id"], "output_index": index}
            numbered += [
                ("response.function_call_arguments.delta", {**place, "delta": piece})
                for piece in _pieces(item["arguments"])
            ]
            numbered.append(
                (
                    "response.function_call_arguments.done",
                    {**place, "arguments": item["arguments"], "name": item["name"]},
                )
            )
        numbered.append(("response.output_item.done", {"output_index": index, "item": item}))
    numbered.append(("response.completed", {"response": response}))
    return None, [
        _sse({"type": name, "sequence_number": number, **data}, name)
        for number, (name, data) in enumerate(numbered)
    ]


def _anthropic(body: dict[str, Any], text: str, calls: list[Any]) -> tuple[Any, list[str] | None]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    content += [
        {"type": "tool_use", "id": f"toolu_{secrets.token_hex(16)[:20]}", "name": name, "input": given}
        for name, given in calls
    ]
    stop = "tool_use" if calls else "end_turn"
    usage = {
        "input_tokens": 100,
        "output_tokens": 10,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    message = {
        "id": f"msg_{secrets.token_hex(16)[:20]}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }
    if not body.get("stream"):
        return message, None
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events = [_sse({"type": "message_start", "message": begun}, "message_start")]
    for index, block in enumerate(content):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        events.append(
            _sse(
                {"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start"
            )
        )
        for piece in _pieces(block["text"] if is_text else json.dumps(block["input"])):
            delta = (
                {"type": "text_delta", "text": piece}
                if is_text
                else {"type": "input_json_delta", "partial_json": piece}
            )
            events.append(
                _sse({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
            )
        events.append(_sse({"type": "content_block_stop", "index": index}, "content_block_stop"))
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 10},
    }
    return None, [*events, _sse(end, "message_delta"), _sse({"type": "message_stop"}, "message_stop")]


def _gemini(path: str, model: str, text: str, calls: list[Any]) -> tuple[Any, list[str] | None]:
    parts: list[dict[str, Any]] = [{"functionCall": {"name": name, "args": given}} for name, given in calls]
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}

    def document(parts: list[dict[str, Any]], *, last: bool) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        head = {"modelVersion": model, "responseId": secrets.token_hex(16)}
        return {"candidates": [candidate | ({"finishReason": "STOP"} if last else {})], **head} | (
            {"usageMetadata": usage} if last else {}
        )

    if not path.endswith(":streamGenerateContent"):
        return document([{"text": text}, *parts], last=True), None
    events = [_sse(document([{"text": piece}], last=False)) for piece in _pieces(text)]
    return None, [*events, _sse(document(parts or [{"text": ""}], last=True))]
