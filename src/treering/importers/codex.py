"""Importing what Codex leaves behind: ``~/.codex/sessions``, one rollout file a session.

A session becomes the thread ``codex/<session>`` with a checkpoint for each turn, and each turn a run with its
messages and tool calls, at the times when they happened and at the prices of that day.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.errors import NotFound
from treering.importers.claude_code.turns import time_us
from treering.importers.json_lines import decode_object
from treering.importers.recording import SessionRecorder, span_label
from treering.importers.sessions import RawLine, Session, SessionImport, Turn, raw_lines, title_of
from treering.importers.streams import codex_usage

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.importers.report import ImportReport, Progress
    from treering.runs.run import Run
    from treering.store import Store


# -----------------------------------------------------------------------------------------------------------
# The lines of Codex's rollout files: what each is, and what the items of a response say.
#
# The first versions wrote items bare, later ones wrap each in a line with a type and a time.


KNOWN: Final = frozenset(
    {
        "compacted", "event_msg", "ghost_snapshot", "response_item", "session_meta", "token_usage_record",
        "turn_context", "world_state",
    }
)  # fmt: skip
"""The types of line that versions of Codex are known to write."""

CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"}
)
OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
HARNESS: Final = ("<environment_context", "<user_instructions", "# AGENTS.md", "<turn_aborted", "<skills")
"""How messages begin that the CLI itself puts into the user's place."""
INTERNAL: Final = "internal_chat_message_metadata_passthrough"
"""What Codex notes down for itself in each item."""
_FAILED: Final = ("Process exited with code ", "Exit code: ")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was read."""

    raw: RawLine
    type: str
    payload: dict[str, Any]
    ts_us: int
    id: str

    @property
    def kind(self) -> str:
        """What the payload says it is."""
        return str(self.payload.get("type") or "")


def unwrapped(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A line's type and payload; the oldest versions have items without a wrapping."""
    payload = value.get("payload")
    if isinstance(payload, dict):
        return str(value.get("type")), cast("dict[str, Any]", payload)
    if "instructions" in value and "type" not in value:
        return "session_meta", value
    if value.get("type") in {"message", "reasoning"} | CALLS | OUTPUTS:
        return "response_item", value
    return str(value.get("type") or value.get("record_type") or "without a type"), value


def turn_of(item: Item) -> str | None:
    """The turn that a line begins or goes on with, if it says so."""
    begins = item.type == "turn_context" or (
        item.type == "event_msg" and item.kind in {"task_started", "turn_started"}
    )
    turn = item.payload.get("turn_id") if begins else None
    return turn if isinstance(turn, str) else None


def tool_name(payload: Mapping[str, Any]) -> str:
    """What a call is of."""
    return str(payload.get("name") or str(payload.get("type")).removesuffix("_call"))


def input_of(payload: Mapping[str, Any]) -> Any:
    """What a call was given."""
    for name in ("arguments", "input", "action"):
        given = payload.get(name)
        if isinstance(given, str):
            try:
                return msgspec.json.decode(given)
            except msgspec.DecodeError:
                return given
        if given is not None:
            return given
    return None


def has_failed(output: Any) -> bool:
    """Codex tells the model in words how a command ended."""
    if isinstance(output, dict):
        return cast("dict[str, Any]", output).get("success") is False
    if not isinstance(output, str):
        return False
    for mark in _FAILED:
        _, found, rest = output.partition(mark)
        if found:
            return not rest.startswith("0")
    try:
        told = mapping(msgspec.json.decode(output))
    except msgspec.DecodeError:
        return False
    return mapping(told.get("metadata")).get("exit_code", 0) != 0


def text_of(payload: Mapping[str, Any]) -> str:
    """What a message says."""
    content: Any = payload.get("content")
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return "\n".join(str(mapping(block).get("text") or "") for block in blocks)


def mapping(value: Any) -> dict[str, Any]:
    """An object as such, anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


# -----------------------------------------------------------------------------------------------------------
# One session of Codex, from its rollout file: turns become runs, with what the model said and did.
#
# A file has a line for each item of a response, and one with the tokens that the response took, before or
# after the tools have answered. The items of a response are put together into one message, which gets its
# tokens. A call, its output and what they are called are Codex's own. Everything else is kept as it is.


AGENT: Final = "codex"


class _Answer:
    """A response of the model while its items come in."""

    def __init__(self, item: Item) -> None:
        self.id = item.id
        self.ts_us = item.ts_us
        self.blocks: list[Any] = []
        self.usage: Usage | None = None
        self.has_results = False

    @property
    def is_over(self) -> bool:
        """Whether the next item belongs to another response."""
        return self.usage is not None or self.has_results


class _Begun:
    def __init__(self, run: Run, recorder: SessionRecorder, turn: str, began_us: int) -> None:
        self.run = run
        self.recorder = recorder
        self.turn = turn
        self.last_us = began_us
        self.status: str | None = None
        self.answer: _Answer | None = None
        self.is_asked = False
        self.has_records = False


class CodexSession:
    """Reads the file of a session and notes down what is in it."""

    def __init__(self, session: Session, path: Path, size: int, *, is_quiet: bool) -> None:
        self.session = session
        self.lines = 0
        self.known = 0
        self.left = 0
        """Lines that wait for what is not written yet."""
        self.bad: list[str] = []
        self.unknown: Counter[str] = Counter()
        self.project = ""
        self.turns: list[Turn] = []
        self.is_over = True
        self._path = path
        self._size = size
        self._is_quiet = is_quiet
        self._runs: list[_Begun] = []
        self._waiting: set[str] = set()
        self._rows: dict[str, str] = {}
        self._model: str | None = None
        self._total: Any = None
        self._meta: dict[str, Any] = {}
        self._title = ""

    def read(self) -> None:
        """Read everything; the notes are in the session then."""
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
            self._take(item)
        self._finish()
        rows = [self._rows.get(item.id, item.id) for item in items]
        new = [id_ for id_ in rows if id_ not in self.session.known]
        self.lines = len(items)
        self.known = self.lines - len(new)
        self.left = sum(each in self._waiting for each in new)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint of the thread says beside its messages."""
        return {"project": self.project, "title": self._title}

    # Lines
    def _read(self) -> list[Item]:
        items: list[Item] = []
        at_us = 0
        for raw in raw_lines(self._path, self._size):
            try:
                value = decode_object(raw.text)
            except msgspec.DecodeError as error:
                self.bad.append(f"{self._path.name} line {raw.number}: {error}")
                continue
            at_us = time_us(value.get("timestamp")) or at_us or self._path.stat().st_mtime_ns // 1000
            type_, payload = unwrapped(value)
            items.append(Item(raw=raw, type=type_, payload=payload, ts_us=at_us, id=self._id(raw, payload)))
        return items

    def _id(self, raw: RawLine, payload: Mapping[str, Any]) -> str:
        if payload.get("type") in OUTPUTS and isinstance(payload.get("call_id"), str):
            return self._call(payload)
        told = b"\0".join((self.session.thread.encode(), b"%d" % raw.number, raw.text))
        return f"codex-{sha256(told).hexdigest()[:32]}"

    def _call(self, payload: Mapping[str, Any]) -> str:
        """A call by the name that its output will have, too."""
        return f"{self.session.thread}/{payload.get('call_id') or payload.get('id')}"

    def _take(self, item: Item) -> None:
        payload = item.payload
        if item.type == "session_meta":
            self._about(payload)
        turn = turn_of(item)
        if turn is not None and (not self._runs or self._runs[-1].turn != turn):
            self._begin(item, turn)
        if item.type == "turn_context":
            self._model = payload.get("model") or self._model
        is_written = item.type == "response_item" and self._response(item)
        if item.type in {"event_msg", "token_usage_record"}:
            self._event(item)
        if not is_written:
            self._keep(item)

    def _about(self, payload: Mapping[str, Any]) -> None:
        self.project = str(payload.get("cwd") or self.project)
        told = {
            "version": payload.get("cli_version"),
            "provider": payload.get("model_provider"),
            "branch": mapping(payload.get("git")).get("branch"),
        }
        self._meta = {name: each for name, each in told.items() if isinstance(each, str)}

    # Runs
    def _begin(self, item: Item, turn: str) -> None:
        session = self.session
        for begun in self._runs[-1:]:
            self._settle(begun)
        id_ = f"{session.thread}/{turn}"
        run = session.run(id_, agent=AGENT, meta={"project": self.project, **self._meta})
        if id_ not in session.known:
            session.notes.at_us = item.ts_us
            run.start()
        if not session.is_foreign(id_):
            session.tally.run(self.project, item.ts_us)
        recorder = SessionRecorder(
            run, is_live=False, known=session.known.keys(), on_usage=session.count_usage(self.project)
        )
        self._runs.append(_Begun(run, recorder, turn, item.ts_us))
        parent = len(self.turns) - 1 if self.turns else None
        keep = self.turns[-1].length if self.turns else 0
        self.turns.append(Turn(id=id_, began_us=item.ts_us, parent=parent, keep=keep, said=[]))

    def _event(self, item: Item) -> None:
        """What is told about a turn: its tokens and its end."""
        if not self._runs:
            return
        begun = self._runs[-1]
        if item.type == "token_usage_record":
            begun.has_records = True
            self._used(begun, codex_usage(mapping(item.payload.get("usage"))))
        elif item.kind == "token_count":
            info = mapping(item.payload.get("info"))
            total = info.get("total_token_usage")
            if total is not None and total != self._total:  # it is told again when nothing was used
                self._total = total
                if not begun.has_records:
                    self._used(begun, codex_usage(mapping(info.get("last_token_usage"))))
        elif item.kind in {"task_complete", "turn_complete"}:
            begun.status = "ok"
            begun.last_us = max(begun.last_us, item.ts_us)
        elif item.kind == "turn_aborted":
            begun.status = "interrupted"
        elif item.kind == "error":
            begun.status = "error"

    def _used(self, begun: _Begun, usage: Usage | None) -> None:
        if begun.answer is not None and begun.answer.usage is None:
            begun.answer.usage = usage

    # What was said
    def _response(self, item: Item) -> bool:
        """An item of a response, or what went into one; says whether it is written as such."""
        payload, kind = item.payload, item.kind
        if kind == "message" and payload.get("role") != "assistant":
            return self._asked(item)
        if kind not in {"message", "reasoning"} and kind not in CALLS | OUTPUTS:
            return False
        if not self._runs:
            self._begin(item, f"line-{item.raw.number}")
        begun = self._runs[-1]
        begun.last_us = max(begun.last_us, item.ts_us)
        if kind in OUTPUTS:
            self._answered(begun, item)
            return True
        if begun.answer is not None and begun.answer.is_over:
            self._settle(begun)
        if begun.answer is None:
            begun.answer = _Answer(item)
            self.turns[-1].said.append({"role": "assistant", "content": begun.answer.blocks})
        begun.answer.blocks.append({name: each for name, each in payload.items() if name != INTERNAL})
        self._rows[item.id] = begun.answer.id
        self._waiting.add(begun.answer.id)
        if kind in CALLS:
            begun.recorder.open(
                self._call(payload), tool_name(payload), input=input_of(payload), ts_us=item.ts_us
            )
            if kind == "web_search_call":
                begun.recorder.close(self._call(payload), ts_us=item.ts_us)
        return True

    def _asked(self, item: Item) -> bool:
        """Something that was said to the model: a prompt begins a run where nothing else did."""
        payload = item.payload
        text = text_of(payload)
        is_prompt = payload.get("role") == "user" and not text.startswith(HARNESS)
        if is_prompt and (
            not self._runs or (self._runs[-1].is_asked and self._runs[-1].turn.startswith("line-"))
        ):
            self._begin(item, f"line-{item.raw.number}")
        if not self._runs:
            return False
        begun = self._runs[-1]
        begun.is_asked = begun.is_asked or is_prompt
        self._settle(begun)
        if is_prompt:
            self._title = self._title or title_of(text)
            self.turns[-1].said.append({"role": "user", "content": text})
        begun.recorder.message(
            span_label(payload.get("role") or "user"),
            text if is_prompt else payload.get("content"),
            name=item.id,
            ts_us=item.ts_us,
            metadata=None if is_prompt else {"harness": True},
        )
        return True

    def _answered(self, begun: _Begun, item: Item) -> None:
        output: Any = item.payload.get("output")
        call = item.payload.get("call_id")
        self.turns[-1].said.append({"role": "tool", "tool_call_id": call, "content": output})
        if begun.answer is not None:
            begun.answer.has_results = True
        begun.recorder.close(
            self._call(item.payload),
            ts_us=item.ts_us,
            status="error" if has_failed(output) else "ok",
            output=output,
        )

    def _settle(self, begun: _Begun) -> None:
        answer, begun.answer = begun.answer, None
        if answer is not None:
            begun.recorder.message(
                "assistant",
                answer.blocks,
                name=answer.id,
                ts_us=answer.ts_us,
                model=self._model,
                usage=answer.usage,
            )
        self._waiting.clear()

    def _keep(self, item: Item) -> None:
        if item.type not in KNOWN:
            self.unknown[item.type] += 1
        kind = f"{item.type}.{item.kind}" if item.kind else item.type
        run = self._runs[-1].run.id if self._runs else None
        self.session.keep(item.raw, id=item.id, kind=span_label(kind), ts_us=item.ts_us, run=run)

    # The ends
    def _finish(self) -> None:
        for begun in self._runs[:-1]:
            self._close(begun)
        if not self._runs:
            return
        last = self._runs[-1]
        if self._is_quiet or last.status is not None:
            self._settle(last)
            self._close(last)
            return
        self.is_over = False
        self.turns.pop()

    def _close(self, begun: _Begun) -> None:
        begun.recorder.finish(begun.last_us)
        if begun.run.id not in self.session.known:
            self.session.notes.at_us = begun.last_us
            begun.run.end(status=begun.status or "ok")


# -----------------------------------------------------------------------------------------------------------

TOOL: Final = "codex"
DEFAULT: Final = "~/.codex/sessions"

_NAME: Final = re.compile(r"rollout-(?:[0-9T-]{19}-)?(.+)")


def import_codex(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Import a folder of sessions, or the file of one."""
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {str(source)!r}; Codex keeps its sessions in {DEFAULT}")
    began = time.perf_counter()
    below = (each for each in path.rglob("rollout-*.jsonl") if each.is_file())
    found = [path] if path.is_file() else sorted(below)
    if not found:
        raise NotFound(f"{path} holds no session of Codex (files rollout-*.jsonl); give {DEFAULT}")
    root = path if path.is_dir() else path.parent
    importing = SessionImport(TOOL, store, dry_run=dry_run)
    for done, each in enumerate(found, 1):
        importing.take(root.name or "sessions", session_id(each), [each], partial(_reading, each))
        if on_progress is not None:
            on_progress(done, len(found))
    return importing.report(str(path), seconds=time.perf_counter() - began)


def session_id(path: Path) -> str:
    """What Codex calls the session of a rollout file, by which it can be resumed."""
    named = _NAME.fullmatch(path.stem)
    return path.stem if named is None else named[1]


def _reading(path: Path, session: Session, sizes: dict[Path, int], is_quiet: bool) -> CodexSession:  # noqa: FBT001
    return CodexSession(session, path, sizes[path], is_quiet=is_quiet)
