"""Import what Codex leaves on disk: ``~/.codex/sessions``, one rollout file for each session.

A session becomes the thread ``codex/<session>`` with a checkpoint for each turn, and each turn becomes a run
with its messages and tool calls, at the times when they happened and at the prices of that day.

A file has a line for each item of a response, and one with the tokens of the response, before or after the
tools have returned. The items of a response are combined into one message, which gets the tokens. Calls and
outputs keep the ids that Codex gives them. All other lines are stored unchanged. The first versions of Codex
wrote bare items, later ones wrap each in a line with a type and a time.

When Codex compacts a conversation it writes what the model is given instead, and leaves the lines before that
in the file. This becomes a compaction of the thread (see `treering.threads.compaction`). It costs what the
response with the summary cost; the compactions that OpenAI's servers make are encrypted and have no cost.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.errors import NotFound
from treering.importers.claude_code.turns import time_us
from treering.importers.lines import RawLine, decode_object, raw_lines, refuse_bad
from treering.importers.recording import SessionRecorder, span_label
from treering.importers.sessions import ImportedSession, SessionImporter, SessionReader, title_of
from treering.importers.streams import codex_usage
from treering.threads.compaction import Summary

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.importers.registry import ImportReport, Progress
    from treering.runs.run import Run
    from treering.store import Store

TOOL: Final = "codex"
DEFAULT: Final = "~/.codex/sessions"

_NAME: Final = re.compile(r"rollout-(?:[0-9T-]{19}-)?(.+)")

KNOWN: Final = frozenset(
    {
        "compacted", "event_msg", "ghost_snapshot", "response_item", "session_meta", "token_usage_record",
        "turn_context", "world_state",
    }
)  # fmt: skip
"""The types of line that any version of Codex writes."""

CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"}
)
OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
HARNESS: Final = ("<environment_context", "<user_instructions", "# AGENTS.md", "<turn_aborted", "<skills")
"""How messages start that the CLI writes on behalf of the user."""
INTERNAL: Final = "internal_chat_message_metadata_passthrough"
"""A field of items for internal use by Codex."""
_FAILED: Final = ("Process exited with code ", "Exit code: ")
AGENT: Final = "codex"


def import_codex(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
) -> ImportReport:
    """Import a folder of sessions, or the file of one."""
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"{str(source)!r} not found; Codex keeps its sessions in {DEFAULT}")
    if strict:
        refuse_bad(import_codex(path, store, dry_run=True))
    began = time.perf_counter()
    below = (each for each in path.rglob("rollout-*.jsonl") if each.is_file())
    found = [path] if path.is_file() else sorted(below)
    if not found:
        raise NotFound(f"no session of Codex (rollout-*.jsonl) found in {path}; try {DEFAULT}")
    root = path if path.is_dir() else path.parent
    importer = SessionImporter(TOOL, store, dry_run=dry_run)
    for done, each in enumerate(found, 1):
        importer.take(root.name or "sessions", session_id(each), [each], partial(CodexSession, path=each))
        if on_progress is not None:
            on_progress(done, len(found))
    return importer.report(str(path), seconds=time.perf_counter() - began)


def session_id(path: Path) -> str:
    """Return the id of the session in a rollout file, by which Codex can resume it."""
    named = _NAME.fullmatch(path.stem)
    return path.stem if named is None else named[1]


class _Response:
    """A response of the model whose items are being read."""

    def __init__(self, item: RolloutItem) -> None:
        self.id = item.id
        self.ts_us = item.ts_us
        self.blocks: list[Any] = []
        self.usage: Usage | None = None
        self.has_results = False

    @property
    def is_over(self) -> bool:
        """Whether the next item starts another response."""
        return self.usage is not None or self.has_results

    def wrote(self, messages: list[dict[str, Any]]) -> bool:
        """Return whether the last of these messages ends with its text, as that with a summary does."""
        text = "".join(map(text_of, self.blocks)).strip()
        return bool(text) and str(messages[-1]["content"]).strip().endswith(text)


class _OpenRun:
    """A run whose items are being read."""

    def __init__(
        self, run: Run, recorder: SessionRecorder, turn: str, began_us: int, first_turn: int
    ) -> None:
        self.run = run
        self.recorder = recorder
        self.turn = turn
        self.first_turn = first_turn
        self.last_us = began_us
        self.status: str | None = None
        self.response: _Response | None = None
        self.has_prompt = False
        self.has_records = False


class CodexSession(SessionReader):
    """Reads the file of a session."""

    agent = AGENT

    def __init__(
        self, session: ImportedSession, sizes: Mapping[Path, int], *, is_quiet: bool, path: Path
    ) -> None:
        super().__init__(session, sizes, is_quiet=is_quiet)
        self._path = path
        self._runs: list[_OpenRun] = []
        self._turns: set[str] = set()
        self._rows: dict[str, str] = {}
        self._model: str | None = None
        self._total: Any = None
        self._meta: dict[str, Any] = {}
        self._title = ""

    def read(self) -> None:
        """Read the file."""
        items = self._read()
        if not items:
            return
        ids = [item.id for item in items]
        ids += [
            f"{self.session.thread}/{turn_of(item) or f'line-{item.raw.number}'}"
            for item in items
            if turn_of(item) or item.type == "response_item"
        ]
        times = [item.ts_us for item in items]
        self.session.look_up(ids, since_us=min(times), until_us=max(times))
        for item in items:
            self._read_item(item)
        self._finish()
        self.count_lines([self._rows.get(item.id, item.id) for item in items])

    @property
    def state(self) -> dict[str, Any]:
        """The state of the thread's checkpoints, beside their messages."""
        return {"project": self.project, "title": self._title}

    def _read(self) -> list[RolloutItem]:
        items: list[RolloutItem] = []
        at_us = 0
        for raw in raw_lines(self._path, self._sizes[self._path]):
            with self.bad.skipping(self._path.name, raw.number):
                value = decode_object(raw.text)
                at_us = time_us(value.get("timestamp")) or at_us or self._path.stat().st_mtime_ns // 1000
                type_, payload = unwrapped(value)
                items.append(
                    RolloutItem(raw=raw, type=type_, payload=payload, ts_us=at_us, id=self._id(raw, payload))
                )
        return items

    def _id(self, raw: RawLine, payload: Mapping[str, Any]) -> str:
        kind = payload.get("type")
        if isinstance(kind, str) and kind in OUTPUTS and isinstance(payload.get("call_id"), str):
            return self._call_id(payload)
        data = b"\0".join((self.session.thread.encode(), b"%d" % raw.number, raw.text))
        return f"codex-{sha256(data).hexdigest()[:32]}"

    def _call_id(self, payload: Mapping[str, Any]) -> str:
        """Return the id of a call, which its output has as well."""
        return f"{self.session.thread}/{payload.get('call_id') or payload.get('id')}"

    def _read_item(self, item: RolloutItem) -> None:
        payload = item.payload
        if item.type == "session_meta":
            self._read_meta(payload)
        turn = turn_of(item)
        if turn is not None and turn not in self._turns:
            self._turns.add(turn)
            self._start(item, turn)
        if item.type == "turn_context":
            model = payload.get("model")
            self._model = model if model and isinstance(model, str) else self._model
        is_written = item.type == "response_item" and self._read_response(item)
        if item.type in {"event_msg", "token_usage_record"}:
            self._read_event(item)
        elif item.type == "compacted":
            self._compact(item.payload, f"{self.session.thread}/line-{item.raw.number}", item.ts_us)
        if not is_written:
            self._store_line(item)

    def _read_meta(self, payload: Mapping[str, Any]) -> None:
        self.project = str(payload.get("cwd") or self.project)
        data = {
            "version": payload.get("cli_version"),
            "provider": payload.get("model_provider"),
            "branch": mapping(payload.get("git")).get("branch"),
        }
        self._meta = {name: each for name, each in data.items() if isinstance(each, str)}

    def _start(self, item: RolloutItem, turn: str) -> None:
        for open_run in self._runs[-1:]:
            self._write_response(open_run)
        id_ = f"{self.session.thread}/{turn}"
        run, recorder = self.start_run(id_, item.ts_us, {"project": self.project, **self._meta})
        self._runs.append(_OpenRun(run, recorder, turn, item.ts_us, len(self.turns)))
        parent = len(self.turns) - 1 if self.turns else None
        keep = self.turns[-1].length if self.turns else 0
        self.follow(parent, keep, id=id_, ts_us=item.ts_us)

    def _compact(self, payload: Mapping[str, Any], id: str, ts_us: int) -> None:
        """Read what the model is given instead of the conversation so far."""
        given: Any = payload.get("replacement_history")
        text = payload.get("message")
        messages = said_in(cast("list[Any]", given)) if isinstance(given, list) else []
        if not messages and text and isinstance(text, str):
            messages = [{"role": "user", "content": text}]
        if not self._runs or not messages:
            return
        response = self._runs[-1].response
        made = Summary(messages=messages)
        if response is not None and response.wrote(messages):
            made = msgspec.structs.replace(made, model=self._model, usage=response.usage)
        self._write_response(self._runs[-1])
        self.compact(len(self.turns) - 1, self.turns[-1].length, made, id=id, ts_us=ts_us)

    def _read_event(self, item: RolloutItem) -> None:
        """Read an event: the tokens of a turn, or its end."""
        if not self._runs:
            return
        open_run = self._runs[-1]
        if item.type == "token_usage_record":
            open_run.has_records = True
            self._set_usage(open_run, codex_usage(mapping(item.payload.get("usage"))))
        elif item.kind == "token_count":
            info = mapping(item.payload.get("info"))
            total = info.get("total_token_usage")
            if total is not None and total != self._total:  # it is repeated when nothing was used
                self._total = total
                if not open_run.has_records:
                    self._set_usage(open_run, codex_usage(mapping(info.get("last_token_usage"))))
        elif item.kind in {"task_complete", "turn_complete"}:
            open_run.status = "ok"
            open_run.last_us = max(open_run.last_us, item.ts_us)
        elif item.kind == "turn_aborted":
            open_run.status = "interrupted"
        elif item.kind == "error":
            open_run.status = "error"

    def _set_usage(self, open_run: _OpenRun, usage: Usage | None) -> None:
        if open_run.response is not None and open_run.response.usage is None:
            open_run.response.usage = usage

    def _read_response(self, item: RolloutItem) -> bool:
        """Read an item of a response, or of its input; return whether it was recorded as such."""
        payload, kind = item.payload, item.kind
        if kind == "message" and payload.get("role") != "assistant":
            return self._read_input(item)
        if kind not in {"message", "reasoning"} and kind not in CALLS | OUTPUTS:
            return False
        if not self._runs:
            self._start(item, f"line-{item.raw.number}")
        open_run = self._runs[-1]
        open_run.last_us = max(open_run.last_us, item.ts_us)
        if kind in OUTPUTS:
            self._read_output(open_run, item)
            return True
        if open_run.response is not None and open_run.response.is_over:
            self._write_response(open_run)
        if open_run.response is None:
            open_run.response = _Response(item)
            self.turns[-1].said.append({"role": "assistant", "content": open_run.response.blocks})
        open_run.response.blocks.append({name: each for name, each in payload.items() if name != INTERNAL})
        self._rows[item.id] = open_run.response.id
        self._waiting.add(open_run.response.id)
        if kind in CALLS:
            ts_us = max(item.ts_us, open_run.response.ts_us + 1)  # after the message that made it
            open_run.recorder.open(
                self._call_id(payload), tool_name(payload), input=input_of(payload), ts_us=ts_us
            )
            if kind == "web_search_call":
                open_run.recorder.close(self._call_id(payload), ts_us=ts_us)
        return True

    def _read_input(self, item: RolloutItem) -> bool:
        """Read input of the model. A prompt starts a run if nothing else has."""
        payload = item.payload
        text = text_of(payload)
        is_prompt = payload.get("role") == "user" and not text.startswith(HARNESS)
        if is_prompt and (
            not self._runs or (self._runs[-1].has_prompt and self._runs[-1].turn.startswith("line-"))
        ):
            self._start(item, f"line-{item.raw.number}")
        if not self._runs:
            return False
        open_run = self._runs[-1]
        open_run.has_prompt = open_run.has_prompt or is_prompt
        self._write_response(open_run)
        if is_prompt:
            self._title = self._title or title_of(text)
            self.turns[-1].said.append({"role": "user", "content": text})
        open_run.recorder.message(
            span_label(payload.get("role") or "user"),
            text if is_prompt else payload.get("content"),
            name=item.id,
            ts_us=item.ts_us,
            metadata=None if is_prompt else {"harness": True},
        )
        return True

    def _read_output(self, open_run: _OpenRun, item: RolloutItem) -> None:
        output: Any = item.payload.get("output")
        call = item.payload.get("call_id")
        self.turns[-1].said.append({"role": "tool", "tool_call_id": call, "content": output})
        if open_run.response is not None:
            open_run.response.has_results = True
        open_run.recorder.close(
            self._call_id(item.payload),
            ts_us=item.ts_us,
            status="error" if has_failed(output) else "ok",
            output=output,
        )

    def _write_response(self, open_run: _OpenRun) -> None:
        response, open_run.response = open_run.response, None
        if response is not None:
            open_run.recorder.message(
                "assistant",
                response.blocks,
                name=response.id,
                ts_us=response.ts_us,
                model=self._model,
                usage=response.usage,
            )
        self._waiting.clear()

    def _store_line(self, item: RolloutItem) -> None:
        if item.type not in KNOWN:
            self.unknown[item.type] += 1
        kind = f"{item.type}.{item.kind}" if item.kind else item.type
        run = self._runs[-1].run.id if self._runs else None
        self.session.keep(item.raw, id=item.id, kind=span_label(kind), ts_us=item.ts_us, run=run)

    def _finish(self) -> None:
        for open_run in self._runs[:-1]:
            self._close(open_run)
        if not self._runs:
            return
        last = self._runs[-1]
        if self._is_quiet or last.status is not None:
            self._write_response(last)
            self._close(last)
            return
        self.is_over = False
        del self.turns[last.first_turn :]

    def _close(self, open_run: _OpenRun) -> None:
        open_run.recorder.finish(open_run.last_us)
        self.end_run(open_run.run, open_run.last_us, open_run.status or "ok")


class RolloutItem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a rollout file."""

    raw: RawLine
    type: str
    payload: dict[str, Any]
    ts_us: int
    id: str

    @property
    def kind(self) -> str:
        """The type of its payload."""
        return str(self.payload.get("type") or "")


def unwrapped(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the type and payload of a line; the oldest versions have bare items."""
    payload = value.get("payload")
    if isinstance(payload, dict):
        return str(value.get("type")), cast("dict[str, Any]", payload)
    if "instructions" in value and "type" not in value:
        return "session_meta", value
    if str(value.get("type")) in {"message", "reasoning"} | CALLS | OUTPUTS:
        return "response_item", value
    return str(value.get("type") or value.get("record_type") or "without a type"), value


def turn_of(item: RolloutItem) -> str | None:
    """Return the turn that a line starts or continues, if it names one."""
    begins = item.type == "turn_context" or (
        item.type == "event_msg" and item.kind in {"task_started", "turn_started"}
    )
    turn = item.payload.get("turn_id") if begins else None
    return turn if isinstance(turn, str) else None


def said_in(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return items of the Responses API as messages, without what the CLI writes on behalf of the user."""
    said: list[dict[str, Any]] = []
    for item in map(mapping, items):
        kind, role = str(item.get("type")), item.get("role")
        if kind == "message" and role != "assistant":
            if role == "user" and not (text := text_of(item)).startswith(HARNESS):
                said.append({"role": "user", "content": text})
        elif kind in OUTPUTS:
            said.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif item:
            if not said or said[-1]["role"] != "assistant":
                said.append({"role": "assistant", "content": []})
            said[-1]["content"].append({name: each for name, each in item.items() if name != INTERNAL})
    return said


def tool_name(payload: Mapping[str, Any]) -> str:
    """Return the name of the called tool."""
    return str(payload.get("name") or str(payload.get("type")).removesuffix("_call"))


def input_of(payload: Mapping[str, Any]) -> Any:
    """Return the input of a call."""
    for name in ("arguments", "input", "action"):
        given = payload.get(name)
        if isinstance(given, str):
            try:
                return msgspec.json.decode(given)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return given
        if given is not None:
            return given
    return None


def has_failed(output: Any) -> bool:
    """Return whether a command failed, which Codex tells the model in words."""
    if isinstance(output, dict):
        return cast("dict[str, Any]", output).get("success") is False
    if not isinstance(output, str):
        return False
    for mark in _FAILED:
        _, found, rest = output.partition(mark)
        if found:
            return not rest.startswith("0")
    try:
        fields = mapping(msgspec.json.decode(output))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return mapping(fields.get("metadata")).get("exit_code", 0) != 0


def text_of(payload: Mapping[str, Any]) -> str:
    """Return the text of a message."""
    content: Any = payload.get("content")
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return "\n".join(str(mapping(block).get("text") or "") for block in blocks)


def mapping(value: Any) -> dict[str, Any]:
    """Return an object unchanged, and anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
