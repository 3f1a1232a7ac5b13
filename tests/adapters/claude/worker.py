"""The Claude Agent SDK and its own CLI with a scripted model, in a process that can be killed.

    python -m tests.adapters.claude.worker FOLDER HOME [SESSION ID] [HANGING TOOL] [effects]

The model is a Messages API on this machine whose answers are a function of what it is shown: it asks for the
squares of 1 to 4 that it has not got yet, one a turn, and then adds up. So its last answer is right only if
every tool result is there. Each tool notes in a file that it ran; the hanging one never returns. How many
tool results the store holds is said on stdout after every save, and at last the answer. With ``effects``,
each call is one, and a call that hangs is said on stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

import treering
from treering.adapters.claude.effects import TreeringEffectHooks
from treering.adapters.claude.session_store import TreeringSessionStore

NUMBERS = (1, 2, 3, 4)
ANSWER = "They add up to 30."
TOOL = "mcp__math__square"


requests: list[list[dict]] = []
"""The messages that the scripted model was given, request by request."""


class ScriptedApi(BaseHTTPRequestHandler):
    """`POST /v1/messages`, streamed, as far as the CLI needs it."""

    def log_message(self, format: str, *_: object) -> None:
        """Nothing on stderr."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        requests.append(asked["messages"])
        block = answer(asked["messages"])
        events = "".join(
            f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"
            for kind, data in stream(block, asked["model"])
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(events)))
        self.end_headers()
        self.wfile.write(events)


def answer(messages) -> dict:
    found = (each.split(":") for each in tool_results(messages))
    results = {int(number): int(square) for number, square in found}
    missing = [number for number in NUMBERS if number not in results]
    if not missing:
        return {"type": "text", "text": f"They add up to {sum(results.values())}."}
    call_id = f"toolu_{missing[0]}_{os.getpid()}"
    return {"type": "tool_use", "id": call_id, "name": TOOL, "input": {"number": missing[0]}}


def tool_results(messages) -> list[str]:
    """The squares among the tool results of a conversation, or of a transcript."""
    contents = [message.get("message", message).get("content") for message in messages]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    found = [json.dumps(block) for block in blocks if block.get("type") == "tool_result"]
    return [match[0] for each in found for match in re.finditer(r"\d+:\d+", each)]


def stream(block, model) -> Iterator[tuple[str, dict]]:
    is_text = block["type"] == "text"
    message = {
        "id": f"msg_{os.getpid()}_{len(requests)}",
        "type": "message",
        "role": "assistant",
        "model": model,
    }
    usage = {"input_tokens": 1, "output_tokens": 1}
    yield "message_start", {"message": {**message, "content": [], "stop_reason": None, "usage": usage}}
    yield (
        "content_block_start",
        {"index": 0, "content_block": block | ({"text": ""} if is_text else {"input": {}})},
    )
    text = {"type": "text_delta", "text": block.get("text")}
    arguments = {"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}
    yield "content_block_delta", {"index": 0, "delta": text if is_text else arguments}
    yield "content_block_stop", {"index": 0}
    stop_reason = "end_turn" if is_text else "tool_use"
    yield "message_delta", {"delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": usage}
    yield "message_stop", {}


@contextmanager
def scripted_api() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedApi) as server:
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def options(folder: Path, home: Path, api: str, *, hanging: int | None = None, **more) -> ClaudeAgentOptions:
    """The CLI with a home of its own, only our tool, and nobody to talk to but the scripted API."""

    @tool("square", "The square of a number", {"number": int})
    async def square(args):
        number = args["number"]
        with (folder / "ran.txt").open("a") as ran:
            ran.write(f"{number}\n")
        if number == hanging:
            print("hanging", flush=True)
            await asyncio.Event().wait()
        return {"content": [{"type": "text", "text": f"{number}:{number * number}"}]}

    project = folder / "project"
    for each in (project, home):
        each.mkdir(exist_ok=True)
    return ClaudeAgentOptions(
        cwd=project,
        env={
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANTHROPIC_BASE_URL": api,
            "ANTHROPIC_API_KEY": "made-up",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "NO_PROXY": "127.0.0.1",
        },
        setting_sources=[],
        tools=[],
        mcp_servers={"math": create_sdk_mcp_server("math", tools=[square])},
        allowed_tools=[TOOL],
        session_store_flush="eager",
        **more,
    )


def forget_the_surroundings() -> None:
    """Whatever this process inherited for another CLI or a proxy is not for this one."""
    for name in list(os.environ):
        if name.upper().startswith(("ANTHROPIC", "CLAUDE")) or name.upper().endswith("_PROXY"):
            del os.environ[name]


async def main(
    folder: Path, home: Path, session_id: str | None, hanging: int | None, *, effects: bool = False
) -> None:
    forget_the_surroundings()
    async with treering.open_async(folder / "store") as store:
        store.hooks.add(
            "post_checkpoint_save",
            lambda saved: print(len(tool_results(saved.checkpoint.messages)), saved.thread_id, flush=True),
        )
        with scripted_api() as api:
            chosen = options(
                folder,
                home,
                api,
                hanging=hanging,
                session_store=TreeringSessionStore(store),
                resume=session_id,
                hooks=TreeringEffectHooks(store).hooks() if effects else None,
            )
            prompt = "Go on." if session_id else "What do the squares of 1 to 4 add up to?"
            async for message in query(prompt=prompt, options=chosen):
                if isinstance(message, ResultMessage):
                    print("answer:", message.result, flush=True)


if __name__ == "__main__":
    asyncio.run(
        main(
            Path(sys.argv[1]),
            Path(sys.argv[2]),
            sys.argv[3] if sys.argv[3:] and sys.argv[3] != "-" else None,
            int(sys.argv[4]) if sys.argv[4:] and sys.argv[4] != "-" else None,
            effects=sys.argv[5:] == ["effects"],
        )
    )
