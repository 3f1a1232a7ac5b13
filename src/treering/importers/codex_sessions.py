"""One session of Codex, from its rollout file: turns become runs, with what the model said and did.

A file has a line for each item of a response, and one with the tokens that the response took, before or after
the tools have answered. The items of a response are put together into one message, which gets its tokens. A
call, its output and what they are called are Codex's own. Everything else is kept as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.importers.claude_lines import time_us
from treering.importers.codex_items import codex_usage
from treering.importers.codex_lines import (
    CALLS,
    HARNESS,
    INTERNAL,
    KNOWN,
    OUTPUTS,
    Item,
    has_failed,
    input_of,
    mapping,
    text_of,
    tool_name,
    turn_of,
    unwrapped,
)
from treering.importers.line_json import decode_object
from treering.importers.scribe import Scribe, shown
from treering.importers.sessions import RawLine, Session, Turn, raw_lines, title_of

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.views.recording.runs import Run

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
    def __init__(self, run: Run, scribe: Scribe, turn: str, began_us: int) -> None:
        self.run = run
        self.scribe = scribe
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
        """What a moment of the thread says beside its messages."""
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
        scribe = Scribe(
            run, is_live=False, known=session.known.keys(), on_usage=session.count_usage(self.project)
        )
        self._runs.append(_Begun(run, scribe, turn, item.ts_us))
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
            begun.scribe.open(
                self._call(payload), tool_name(payload), input=input_of(payload), ts_us=item.ts_us
            )
            if kind == "web_search_call":
                begun.scribe.close(self._call(payload), ts_us=item.ts_us)
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
        begun.scribe.message(
            shown(payload.get("role") or "user"),
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
        begun.scribe.close(
            self._call(item.payload),
            ts_us=item.ts_us,
            status="error" if has_failed(output) else "ok",
            output=output,
        )

    def _settle(self, begun: _Begun) -> None:
        answer, begun.answer = begun.answer, None
        if answer is not None:
            begun.scribe.message(
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
        self.session.keep(item.raw, id=item.id, kind=shown(kind), ts_us=item.ts_us, run=run)

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
        begun.scribe.finish(begun.last_us)
        if begun.run.id not in self.session.known:
            self.session.notes.at_us = begun.last_us
            begun.run.end(status=begun.status or "ok")
