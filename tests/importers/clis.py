"""Claude Code and Codex with scripted models: where the fixtures of their importers come from.

    python -m tests.importers.clis claude-code CLI
    python -m tests.importers.clis codex CLI
    python -m tests.importers.clis claude-code-compacted CLI
    python -m tests.importers.clis codex-compacted CLI

Each CLI is driven twice (a prompt, then the same session resumed) in a home of its own, and talks to nobody
but an HTTP server here whose answers are a function of what it is shown. What it leaves behind is copied to
`fixtures/`, without the paths of this machine, and with the long texts of others cut short. In the
``-compacted`` ones, the conversation is compacted in the middle of a turn and between two of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
PROMPT = "MAKE A NOTE, please."
AGAIN = "GO ON."
WORK = "WORK LONG."
LATER = "ONE MORE THING."
COMPACTED = "The long work is done."
COMPACTING = {"CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "5", "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"}
CODEX_LIMIT = 1310
"""Codex compacts as soon as the model has reported more tokens."""
CLAUDE_MODEL = "claude-sonnet-4-5"
CODEX_MODEL = "gpt-5-codex"

CLAUDE_USAGE = {
    "main0": {
        "input_tokens": 12,
        "cache_creation_input_tokens": 2000,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 500, "ephemeral_1h_input_tokens": 1500},
        "output_tokens": 90,
    },
    "main1": {
        "input_tokens": 3,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 2000,
        "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 60,
    },
    "main2": {"input_tokens": 5, "cache_read_input_tokens": 2100, "output_tokens": 20},
    "main3": {"input_tokens": 6, "cache_read_input_tokens": 2150, "output_tokens": 7},
    "sub0": {"input_tokens": 700, "cache_read_input_tokens": 0, "output_tokens": 30},
    "sub1": {"input_tokens": 800, "cache_read_input_tokens": 0, "output_tokens": 10},
    "again": {"input_tokens": 9, "cache_read_input_tokens": 2200, "output_tokens": 8},
    "long": {"input_tokens": 9, "cache_read_input_tokens": 186_000, "output_tokens": 8},
    "worked": {"input_tokens": 4, "cache_read_input_tokens": 2300, "output_tokens": 6},
    "later": {"input_tokens": 7, "cache_read_input_tokens": 2300, "output_tokens": 9},
    "side": {"input_tokens": 1, "output_tokens": 1},
}
CODEX_USAGE = {
    "call": (1200, 1000, 40, 16),
    "fail": (1300, 1200, 20, 0),
    "done": (1400, 1300, 12, 4),
    "again": (1500, 1400, 9, 0),
    "summary": (1600, 0, 30, 0),
}
"""Input, cached of it, output, reasoning of it."""


# The models
def claude_answer(asked: dict[str, Any], note: str) -> tuple[str, list[dict[str, Any]]]:
    said = _said(asked["messages"])
    done = sum(
        block.get("type") == "tool_result"
        for message in asked["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    )
    if not asked.get("tools") or "create a detailed summary" in _said(asked["messages"][-1:]):
        return "side", [_text(f"<summary>\n{COMPACTED}\n</summary>" if asked.get("tools") else "A note")]
    if LATER in said:
        return "later", [_text("That too.")]
    if WORK in said and AGAIN not in said and done == 0:
        return "long", [_text("I work."), _bash("toolu_long", "echo worked")]
    if AGAIN not in said and (WORK in said or COMPACTED in said):
        return "worked", [_text("It is done.")]
    if "SUBTASK" in said and PROMPT not in said:
        read = {"type": "tool_use", "id": "toolu_sub_read", "name": "Read", "input": {"file_path": note}}
        return ("sub1", [_text("The note says: ring.")]) if done else ("sub0", [_text("I look."), read])
    if AGAIN in said:
        return "again", [_text("There is nothing more to do.")]
    if done == 0:
        thought = {"type": "thinking", "thinking": "A file is wanted.", "signature": "c2lnbmVk"}
        return "main0", [
            thought,
            _text("I write the note."),
            _bash("toolu_write", "echo ring > note.txt && cat note.txt"),
        ]
    if done == 1:
        task = {
            "description": "Check the note",
            "prompt": "SUBTASK: what does the note say?",
            "subagent_type": "general-purpose",
        }
        names = {tool["name"] for tool in asked["tools"]}
        call = {
            "type": "tool_use",
            "id": "toolu_task",
            "name": "Agent" if "Agent" in names else "Task",
            "input": task,
        }
        return "main1", [_text("Someone else checks it."), call, _bash("toolu_missing", "cat missing.txt")]
    if "task-notification" in said:
        return "main3", [_text("It was checked.")]
    return "main2", [_text("The note is there, and says: ring.")]


def claude_events(asked: dict[str, Any], note: str) -> Iterator[tuple[str, dict[str, Any]]]:
    name, blocks = claude_answer(asked, note)
    usage = CLAUDE_USAGE[name]
    message = {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1, "service_tier": "standard"},
    }
    yield "message_start", {"message": message}
    for index, block in enumerate(blocks):
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        yield (
            "content_block_start",
            {"index": index, "content_block": block | empty.get(block["type"], {"input": {}})},
        )
        for delta in _deltas(block):
            yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    counted = {"output_tokens": usage["output_tokens"]}
    yield "message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": counted}
    yield "message_stop", {}


def codex_events(asked: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    items = asked["input"]
    done = sum(str(item.get("type")).endswith("call_output") for item in items)
    said = json.dumps([item for item in items if item.get("role") == "user"])
    if "CONTEXT CHECKPOINT" in json.dumps(items[-1]):
        name, new = "summary", [_output(f"msg_summary_{len(items)}", COMPACTED)]
    elif AGAIN in said:
        name, new = "again", [_output("msg_again", "There is nothing more to do.")]
    elif done == 0 and COMPACTED not in said:
        thought = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "A file is wanted."}],
            "encrypted_content": None,
        }
        write = _exec("call_write", "echo ring > note.txt && cat note.txt")
        name, new = "call", [thought, _output("msg_first", "I write the note."), write]
    elif done == 1:
        name, new = "fail", [_exec("call_missing", "cat missing.txt")]
    else:
        name, new = "done", [_output("msg_done", "The note is there, and says: ring.")]
    given, cached, output, reasoning = CODEX_USAGE[name]
    response = {"id": f"resp_{name}", "status": "in_progress", "output": []}
    yield "response.created", {"response": response}
    for index, item in enumerate(new):
        yield "response.output_item.added", {"output_index": index, "item": item}
        yield "response.output_item.done", {"output_index": index, "item": item}
    usage = {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + output,
    }
    yield (
        "response.completed",
        {
            "response": {
                **response,
                "status": "completed",
                "model": asked["model"],
                "output": new,
                "usage": usage,
            }
        },
    )


def _said(messages: list[dict[str, Any]]) -> str:
    contents = [message["content"] for message in messages if message["role"] == "user"]
    return "\n".join(
        text
        for content in contents
        for text in (
            [content]
            if isinstance(content, str)
            else [block["text"] for block in content if block.get("type") == "text"]
        )
    )


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _bash(id: str, command: str) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": id,
        "name": "Bash",
        "input": {"command": command, "description": "Run it"},
    }


def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "text":
        return [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        return [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    return [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _output(id: str, text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": id,
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _exec(id: str, command: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{id}",
        "call_id": id,
        "name": "exec_command",
        "arguments": json.dumps({"cmd": command}),
    }


@contextmanager
def scripted_api(note: Path) -> Iterator[str]:
    """`POST .../messages` and `.../responses`, streamed, as far as the CLIs need them."""

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

        def do_GET(self) -> None:
            self._answer(b"{}", "application/json")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            if "/responses" in self.path:
                events = codex_events(asked)
            elif "/messages" in self.path and "count_tokens" not in self.path:
                events = claude_events(asked, str(note))
            else:
                self._answer(b'{"input_tokens": 10}', "application/json")
                return
            result = "".join(
                f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in events
            )
            self._answer(result.encode(), "text/event-stream")

        def _answer(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


# The CLIs
def drive_claude(
    cli: str, folder: Path, *, prompts: tuple[str, ...] = (PROMPT, AGAIN), **variables: str
) -> list[str]:
    """What `claude -p` printed for each prompt; its sessions are below ``folder/home/.claude/projects``."""
    home, project = _folders(folder)
    printed: list[str] = []
    with scripted_api(project / "note.txt") as api:
        environment = _environment(
            home,
            CLAUDE_CONFIG_DIR=str(home / ".claude"),
            ANTHROPIC_BASE_URL=api,
            ANTHROPIC_API_KEY="made-up",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
            **variables,
        )
        command = [cli, "-p", "--verbose", "--output-format=stream-json", f"--model={CLAUDE_MODEL}"]
        command.append("--allowedTools=Bash,Read,Task,Agent")
        for prompt in prompts:
            resumed = [f"--resume={_session(printed[0])}"] if printed else []
            printed.append(_ran([*command, *resumed, prompt], project, environment))
    return printed


def drive_codex(cli: str, folder: Path, *, limit: int | None = None) -> list[str]:
    """What `codex exec` printed for each prompt; its sessions are below ``folder/home/.codex/sessions``."""
    home, project = _folders(folder)
    with scripted_api(project / "note.txt") as api:
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text(
            ("" if limit is None else f"model_auto_compact_token_limit = {limit}\n")
            + f'model = "{CODEX_MODEL}"\nmodel_provider = "scripted"\n[model_providers.scripted]\n'
            f'name = "scripted"\nbase_url = "{api}/v1"\nwire_api = "responses"\nenv_key = "SCRIPTED_KEY"\n'
        )
        environment = _environment(home, CODEX_HOME=str(home / ".codex"), SCRIPTED_KEY="made-up")
        command = [cli, "exec", "--json", "--skip-git-repo-check"]
        command.append("--dangerously-bypass-approvals-and-sandbox")
        return [
            _ran([*command, PROMPT], project, environment),
            _ran([*command, "resume", "--last", AGAIN], project, environment),
        ]


def _claude_compacting(cli: str, folder: Path) -> list[str]:
    return drive_claude(cli, folder, prompts=(WORK, AGAIN, "/compact", LATER), **COMPACTING)


def _folders(folder: Path) -> tuple[Path, Path]:
    home, project = folder / "home", folder / "shop"
    for each in (home, project):
        each.mkdir(parents=True, exist_ok=True)
    return home, project


def _environment(home: Path, **more: str) -> dict[str, str]:
    """Whatever this process inherited for another CLI or a proxy is not for this one."""
    others = ("ANTHROPIC", "CLAUDE", "OPENAI", "CODEX")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(others) and not name.upper().endswith("_PROXY")
    }
    return {**kept, "HOME": str(home), "NO_PROXY": "127.0.0.1", **more}


def _ran(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


def _session(printed: str) -> str:
    return json.loads(printed.splitlines()[-1])["session_id"]


# The fixtures
def scrubbed(text: str, folder: Path) -> str:
    """Without the paths of this machine, and with what others wrote cut short."""
    text = text.replace(str(folder), "/home/ada").replace(_dashed(folder), "-home-ada")
    text = re.sub(r"/tmp/claude-\d+/", "/tmp/claude/", text)
    text = re.sub(r'"/tmp/cc[^"]*"', '"/tmp/cc"', text)
    text = re.sub(r"Linux \d[\w.-]+", "Linux", text)
    return "".join(
        json.dumps(_cut(json.loads(line)), ensure_ascii=False) + "\n" for line in text.splitlines()
    )


def _dashed(folder: Path) -> str:
    """How Claude Code names the folder of a project."""
    return re.sub(r"[^A-Za-z0-9]", "-", str(folder))


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_cut(each) for each in value[:6]]
    if isinstance(value, str) and len(value) > 200:
        return f"{value[:40]} (cut)" + (f" {COMPACTED}" if COMPACTED in value else "")
    return value


def main(name: str, cli: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        target = FIXTURES / name
        shutil.rmtree(target, ignore_errors=True)
        drive, sessions = {
            "claude-code": (drive_claude, folder / "home" / ".claude" / "projects"),
            "claude-code-compacted": (_claude_compacting, folder / "home" / ".claude" / "projects"),
            "codex": (drive_codex, folder / "home" / ".codex" / "sessions"),
            "codex-compacted": (
                partial(drive_codex, limit=CODEX_LIMIT),
                folder / "home" / ".codex" / "sessions",
            ),
        }[name]
        for number, printed in enumerate(drive(cli, folder)):
            place = target / f"stream-{number}.jsonl"
            if name.endswith("-compacted"):
                continue  # a stream says nothing of the summary that the file does not
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(scrubbed(printed, folder), encoding="utf-8")
        for each in sorted(sessions.rglob("*.json*")):
            shown = str(each.relative_to(sessions.parent)).replace(_dashed(folder), "-home-ada")
            place = target / shown
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(scrubbed(each.read_text(encoding="utf-8"), folder), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], str(Path(sys.argv[2]).resolve()))
