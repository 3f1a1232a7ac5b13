"""Importing what Claude Code leaves behind: ``~/.claude/projects``, all sessions of all projects.

A session becomes the thread ``claude-code/<session>`` with a checkpoint for each prompt, and each prompt a
run with its messages, tool calls and subagents, at the times when they happened and at the prices of that
day.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.errors import NotFound
from treering.importers.claude_code.turns import (
    CONVERSATION,
    MAIN,
    SYNTHETIC,
    ClaudeLine,
    ClaudeTurn,
    read_line,
)
from treering.importers.json_lines import decode_object
from treering.importers.recording import SessionRecorder, span_label
from treering.importers.sessions import RawLine, Session, SessionImport, Turn, raw_lines, title_of

if TYPE_CHECKING:
    from treering.importers.report import ImportReport, Progress
    from treering.runs.run import Run
    from treering.store import Store


# -----------------------------------------------------------------------------------------------------------
# One session of Claude Code, from its files: prompts become runs, and all other lines go below them.
#
# A prompt begins a run, which is over when the next one begins, when the model has said its last word, or
# when nobody has written for a while; what is not over yet waits for the next import. A prompt that does
# not follow the last line but an earlier one was asked after going back, so its checkpoint in the thread
# branches off there.


AGENT: Final = "claude-code"

KNOWN: Final = frozenset(
    {
        *CONVERSATION,
        "agent-name", "ai-title", "api-request", "api-request-blob", "api-request-shape", "atis-latch",
        "attachment", "cost-state", "custom-title", "file-history-snapshot", "last-prompt", "mode",
        "progress", "queue-operation", "summary", "system", "tag", "tools-used",
    }
)  # fmt: skip
"""The types of line that versions of Claude Code are known to write."""

_TITLES: Final = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_NO_PROMPT: Final = ("[Request interrupted", "<local-command-stdout>", "<local-command-stderr>", "<bash-")
_INTERRUPTED: Final = "[Request interrupted"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was read, with the time that it stands for and the id of its row."""

    raw: RawLine
    read: ClaudeLine
    ts_us: int
    id: str


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one session."""

    project: str
    id: str
    main: Path | None
    agents: tuple[Path, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [*([] if self.main is None else [self.main]), *self.agents]


class _Begun:
    """A run while its lines are read."""

    def __init__(self, run: Run, turn: ClaudeTurn, began_us: int) -> None:
        self.run = run
        self.turn = turn
        self.began_us = began_us
        self.status = "ok"


class ClaudeSession:
    """Reads the files of a session and notes down what is in them."""

    def __init__(self, session: Session, files: Files, sizes: dict[Path, int], *, is_quiet: bool) -> None:
        self.session = session
        self.lines = 0
        self.known = 0
        self.left = 0
        """Lines that wait for what is not written yet."""
        self.bad: list[str] = []
        self.unknown: Counter[str] = Counter()
        self.project = files.project
        self.turns: list[Turn] = []
        self.is_over = True
        self._files = files
        self._sizes = sizes
        self._is_quiet = is_quiet
        self._waiting: set[str] = set()
        self._runs: list[_Begun] = []
        self._title = ""
        self._said: dict[str, dict[str, Any]] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._roots: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        self._spawned: dict[str, str] = {}
        self._about: dict[str, Any] = {}

    def read(self) -> None:
        """Read everything; the notes are in the session then."""
        main = [] if self._files.main is None else self._read(self._files.main)
        agents = [(path, self._read(path)) for path in self._files.agents]
        everything = [*main, *(line for _, lines in agents for line in lines)]
        if not everything:
            return
        first = next((line.read for line in everything if line.read.cwd), None)
        if first is not None and first.cwd:
            self.project = first.cwd
            self._about = {"version": first.version, "branch": first.branch}
        self._learn(everything)
        for line in main:
            self._take(line)
        for path, lines in sorted(agents, key=lambda each: _depth(each[0])):
            self._take_agent(path, lines)
        self._finish()
        new = [line.id for line in everything if line.id not in self.session.known]
        self.lines = len(everything)
        self.known = self.lines - len(new)
        self.left = sum(each in self._waiting for each in new)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint of the thread says beside its messages."""
        return {"project": self.project, "session": self._files.id, "title": self._title}

    # Lines
    def _read(self, path: Path) -> list[Line]:
        found: list[Line] = []
        early: list[tuple[RawLine, ClaudeLine]] = []
        at_us = 0
        for raw in raw_lines(path, self._sizes[path]):
            try:
                line = read_line(raw.text)
            except msgspec.DecodeError as error:
                self.bad.append(f"{path.name} line {raw.number}: {error}")
                continue
            at_us = line.ts_us or at_us
            if not at_us:
                early.append((raw, line))
                continue
            found.extend(self._line(path, *each, at_us) for each in early)
            early.clear()
            found.append(self._line(path, raw, line, at_us))
        changed_us = path.stat().st_mtime_ns // 1000
        return found + [self._line(path, raw, line, changed_us) for raw, line in early]

    def _line(self, path: Path, raw: RawLine, line: ClaudeLine, ts_us: int) -> Line:
        id_ = line.uuid
        if line.type == "assistant" and line.message is not None:
            id_ = line.message.id or id_
        elif line.type == "user" and line.results:
            tool = line.results[0].get("tool_use_id")
            id_ = tool if isinstance(tool, str) else id_
        if id_ is None:
            told = b"\0".join(
                (self.session.thread.encode(), path.name.encode(), b"%d" % raw.number, raw.text)
            )
            id_ = f"line-{sha256(told).hexdigest()[:32]}"
        return Line(raw=raw, read=line, ts_us=ts_us, id=id_)

    def _learn(self, lines: list[Line]) -> None:
        ids = [line.id for line in lines]
        ids += [_run_id(line) for line in lines if line.read.is_prompt]
        ids += [f"agent-{line.read.agent_id}" for line in lines if line.read.agent_id]
        times = [line.ts_us for line in lines]
        self.session.look_up(ids, since_us=min(times), until_us=max(times))

    # The main conversation
    def _take(self, line: Line) -> None:
        read = line.read
        if not _is_said(read):
            self._keep(line)
        elif read.is_sidechain:
            self._take_inline(line)
        else:
            if not self._runs or _is_prompt(read):
                self._begin(line)
            begun = self._runs[-1]
            begun.turn.take(read, ts_us=line.ts_us)
            self._note(begun, line)
            self._converse(line)
        if read.uuid is not None and self.turns:
            self._places[read.uuid] = len(self.turns) - 1, self.turns[-1].length

    def _begin(self, line: Line) -> None:
        id_ = _run_id(line)
        session = self.session
        prompt = line.read.message.content if line.read.message is not None else None
        meta = {"project": self.project, "session": self._files.id, **self._about}
        if isinstance(prompt, str):
            meta["prompt"] = title_of(prompt)
            self._title = self._title or title_of(prompt)
        run = session.run(id_, agent=AGENT, meta={key: each for key, each in meta.items() if each})
        if id_ not in session.known:
            session.notes.at_us = line.ts_us
            run.start()
        if not session.is_foreign(id_):
            session.tally.run(self.project, line.ts_us)
        recorder = SessionRecorder(
            run, is_live=False, known=session.known.keys(), on_usage=session.count_usage(self.project)
        )
        self._runs.append(_Begun(run, ClaudeTurn(recorder), line.ts_us))
        parent, keep = self._parent(line)
        self.turns.append(Turn(id=id_, began_us=line.ts_us, parent=parent, keep=keep, said=[]))

    def _parent(self, line: Line) -> tuple[int | None, int]:
        """The turn that a prompt follows, and how much of its conversation."""
        if not self.turns:
            return None, 0
        last = len(self.turns) - 1, self.turns[-1].length
        return self._places.get(line.read.parent_uuid or "", last)

    def _note(self, begun: _Begun, line: Line) -> None:
        """What of a line concerns others than itself."""
        read = line.read
        for block in read.blocks:
            given = block.get("input")
            if (
                block.get("type") == "tool_use"
                and isinstance(given, dict)
                and isinstance(block.get("id"), str)
            ):
                self._tasks.setdefault(str(given.get("prompt")), block["id"])  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        told = read.tool_result
        if isinstance(told, dict) and isinstance(agent := told.get("agentId"), str) and read.results:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            self._spawned[agent] = line.id
        if read.type == "user" and _text(read).startswith(_INTERRUPTED):
            begun.status = "interrupted"
        elif read.type == "assistant" and read.message is not None:
            begun.status = "error" if read.message.model == SYNTHETIC else "ok"

    def _converse(self, line: Line) -> None:
        message = line.read.message
        if message is None:
            return
        turn = self.turns[-1]
        if line.read.type == "user":
            turn.said.append({"role": "user", "content": message.content})
            return
        known = self._said.get(line.id)
        if known is None:
            known = self._said[line.id] = {"role": "assistant", "content": []}
            turn.said.append(known)
        known["content"] += line.read.blocks

    def _keep(self, line: Line, run: str | None = None) -> None:
        read = line.read
        if read.type not in KNOWN:
            self.unknown[read.type] += 1
        if read.type in _TITLES:
            title = decode_object(line.raw.text).get(_TITLES[read.type])
            self._title = title_of(title) if isinstance(title, str) else self._title
        if run is None and self._runs:
            run = self._runs[-1].run.id
        self.session.keep(line.raw, id=line.id, kind=span_label(read.type), ts_us=line.ts_us, run=run)

    # Agents below
    def _take_inline(self, line: Line) -> None:
        """A subagent's line in the file of the session, as older versions have them."""
        read = line.read
        root = self._roots.get(read.parent_uuid or "") or read.uuid or line.id
        if read.uuid is not None:
            self._roots[read.uuid] = root
        if not self._runs:
            self._keep(line)
            return
        turn = self._runs[-1].turn
        tool = self._tasks.get(_text(read)) if root == read.uuid else None
        name = turn.chain(read.agent_id or root, agent="subagent", tool=tool, ts_us=line.ts_us)
        turn.take(read, ts_us=line.ts_us, chain=name)

    def _take_agent(self, path: Path, lines: list[Line]) -> None:
        """A subagent's own file."""
        about = _about_agent(path)
        name = path.stem.removeprefix("agent-")
        tool = about.get("toolUseId") or self._spawned.get(name)
        begun = self._owner(tool if isinstance(tool, str) else None, lines)
        if begun is None:
            self._waiting.update(line.id for line in lines)
            self.is_over = False
            return
        agent = span_label(about.get("agentType") or "subagent")
        for line in lines:
            if not _is_said(line.read):
                self._keep(line, begun.run.id)
                continue
            chain = begun.turn.chain(name, agent=agent, tool=tool, ts_us=line.ts_us)
            begun.turn.take(line.read, ts_us=line.ts_us, chain=chain)

    def _owner(self, tool: str | None, lines: list[Line]) -> _Begun | None:
        """The run that began an agent: by the call, else by the time; ``None`` while the call is to come."""
        for begun in self._runs:
            if tool is not None and begun.turn.recorder.span_of(tool) is not None:
                return begun
        if tool is not None and not self._is_quiet:
            return None
        first_us = min((line.ts_us for line in lines), default=0)
        earlier = [begun for begun in self._runs if begun.began_us <= first_us]
        return earlier[-1] if earlier else self._runs[0] if self._runs else None

    # The ends
    def _finish(self) -> None:
        for begun in self._runs[:-1]:
            self._close(begun)
        if not self._runs:
            return
        last = self._runs[-1]
        agents_done = all(last.turn.is_done(name) for name in last.turn.agents)
        if self._is_quiet or (last.turn.is_done(MAIN) and agents_done):
            self._close(last)
            return
        self.is_over = False
        self._waiting.update(last.turn.settle(unfinished=False))
        self.turns.pop()

    def _close(self, begun: _Begun) -> None:
        begun.turn.finish()
        if begun.run.id not in self.session.known:
            self.session.notes.at_us = begun.turn.last_us
            begun.run.end(status=begun.status)


def _is_said(line: ClaudeLine) -> bool:
    """Whether a line is part of a conversation: an answer, or something that was said to the model."""
    if line.message is None:
        return False
    return line.type == "assistant" or (line.type == "user" and bool(line.blocks))


def _is_prompt(line: ClaudeLine) -> bool:
    return line.is_prompt and not line.is_summary and not _text(line).startswith(_NO_PROMPT)


def _run_id(line: Line) -> str:
    return f"claude-{line.read.uuid or line.id}"


def _text(line: ClaudeLine) -> str:
    first = line.blocks[0].get("text") if line.blocks else None
    return first if isinstance(first, str) else ""


def _about_agent(path: Path) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(path.with_suffix(".meta.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return cast("dict[str, Any]", told) if isinstance(told, dict) else {}


def _depth(path: Path) -> int:
    depth = _about_agent(path).get("spawnDepth")
    return depth if isinstance(depth, int) else 1


def session_of_agent(path: Path) -> str | None:
    """The session that an agent's file names, where the folder does not."""
    for raw in raw_lines(path, path.stat().st_size):
        try:
            return read_line(raw.text).session
        except msgspec.DecodeError:
            continue
    return None


def found_files(source: Path) -> Iterator[Files]:
    """The sessions below a folder of projects, in one project's folder, or the one of a file."""
    if source.is_file():
        agents = sorted((source.parent / source.stem / "subagents").glob("agent-*.jsonl"))
        yield Files(project=source.parent.name, id=source.stem, main=source, agents=tuple(agents))
        return
    folders: dict[Path, Path] = {}
    for folder in [source, *sorted(each for each in source.iterdir() if each.is_dir())]:
        folders.setdefault(folder.resolve(), folder)  # a link to one that is there counts nothing twice
    for folder in folders.values():
        yield from _of_project(folder)


def _of_project(folder: Path) -> Iterator[Files]:
    agents: dict[str, list[Path]] = {}
    mains: dict[str, Path] = {}
    for path in sorted(
        each for each in folder.glob("*.jsonl") if each.is_file()
    ):  # a pipe would wait forever
        if path.stem.startswith("agent-"):
            agents.setdefault(session_of_agent(path) or path.stem, []).append(path)
        else:
            mains[path.stem] = path
    for path in sorted(folder.glob("*/subagents/agent-*.jsonl")):
        agents.setdefault(path.parent.parent.name, []).append(path)
    for id_ in dict.fromkeys([*mains, *agents]):
        yield Files(project=folder.name, id=id_, main=mains.get(id_), agents=tuple(agents.get(id_, ())))


# -----------------------------------------------------------------------------------------------------------

TOOL: Final = "claude-code"
DEFAULT: Final = "~/.claude/projects"


def import_claude_code(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    is_over: bool = False,
) -> ImportReport:
    """Import a folder of projects, the folder of one project, or the file of one session.

    ``is_over`` says that nobody writes to them any more, so that nothing needs to wait for its end.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {str(source)!r}; Claude Code keeps its sessions in {DEFAULT}")
    began = time.perf_counter()
    found = [files for files in found_files(path) if files.paths]
    if not found:
        raise NotFound(f"{path} holds no session of Claude Code (files <session>.jsonl); give {DEFAULT}")
    importing = SessionImport(TOOL, store, dry_run=dry_run, is_over=is_over)
    for done, files in enumerate(found, 1):
        importing.take(files.project, files.id, files.paths, partial(_reading, files))
        if on_progress is not None:
            on_progress(done, len(found))
    return importing.report(str(path), seconds=time.perf_counter() - began)


def _reading(files: Files, session: Session, sizes: dict[Path, int], is_quiet: bool) -> ClaudeSession:  # noqa: FBT001
    return ClaudeSession(session, files, sizes, is_quiet=is_quiet)
