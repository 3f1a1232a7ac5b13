"""Import what Claude Code leaves on disk: ``~/.claude/projects``, all sessions of all projects.

A session becomes the thread ``claude-code/<session>`` with a checkpoint for each prompt, and each prompt
becomes a run with its messages, tool calls and subagents, at the times when they happened and at the prices
of that day.

A run ends when the next prompt begins, when the model's answer is final, or when nothing was written for a
while; an unfinished one waits for the next import. A prompt that continues from an earlier line was asked
after going back, so its checkpoint branches off there.

When Claude Code compacts a conversation it writes a boundary, then the summary, and leaves the lines before
them in the file; the boundary names the last lines that the model still sees. The summary becomes a
compaction of the thread (see `treering.threads.compaction`), which stands for the messages before those.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.errors import NotFound
from treering.importers.claude_code.turns import (
    CONVERSATION,
    MAIN,
    MAX_TOKENS,
    SYNTHETIC,
    ClaudeLine,
    ClaudeTurn,
    read_line,
)
from treering.importers.lines import RawLine, decode_object, raw_lines, refuse_bad
from treering.importers.recording import span_label
from treering.importers.sessions import ImportedSession, SessionImporter, SessionReader, title_of
from treering.threads.compaction import Summary

if TYPE_CHECKING:
    from treering.importers.registry import ImportReport, Progress
    from treering.runs.run import Run
    from treering.store import Store

TOOL: Final = "claude-code"
DEFAULT: Final = "~/.claude/projects"

AGENT: Final = "claude-code"

KNOWN: Final = frozenset(
    {
        *CONVERSATION,
        "agent-name", "ai-title", "api-request", "api-request-blob", "api-request-shape", "atis-latch",
        "attachment", "cost-state", "custom-title", "file-history-snapshot", "last-prompt", "mode",
        "progress", "queue-operation", "summary", "system", "tag", "tools-used",
    }
)  # fmt: skip
"""The types of line that any version of Claude Code writes."""

_TITLES: Final = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_NO_PROMPT: Final = ("[Request interrupted", "<local-command-stdout>", "<local-command-stderr>", "<bash-")
_INTERRUPTED: Final = "[Request interrupted"


def import_claude_code(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
    is_over: bool = False,
) -> ImportReport:
    """Import a folder of projects, the folder of one project, or the file of one session.

    ``is_over`` means that nothing is added to the sessions any more, so that nothing has to wait.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"{str(source)!r} not found; Claude Code keeps its sessions in {DEFAULT}")
    if strict:
        refuse_bad(import_claude_code(path, store, dry_run=True, is_over=is_over))
    began = time.perf_counter()
    found = [files for files in find_sessions(path) if files.paths]
    if not found:
        raise NotFound(f"no session of Claude Code (<session>.jsonl) found in {path}; try {DEFAULT}")
    importer = SessionImporter(TOOL, store, dry_run=dry_run, is_over=is_over)
    for done, files in enumerate(found, 1):
        importer.take(files.project, files.id, files.paths, partial(ClaudeSession, files=files))
        if on_progress is not None:
            on_progress(done, len(found))
    return importer.report(str(path), seconds=time.perf_counter() - began)


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line with its time and the id of its row."""

    raw: RawLine
    read: ClaudeLine
    ts_us: int
    id: str


class SessionFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one session."""

    project: str
    id: str
    main: Path | None
    agents: tuple[Path, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [*([] if self.main is None else [self.main]), *self.agents]


class _OpenRun:
    """A run whose lines are being read."""

    def __init__(self, run: Run, turn: ClaudeTurn, began_us: int, first_turn: int) -> None:
        self.run = run
        self.turn = turn
        self.began_us = began_us
        self.first_turn = first_turn
        self.status = "ok"


class ClaudeSession(SessionReader):
    """Reads the files of a session."""

    agent = AGENT

    def __init__(
        self,
        session: ImportedSession,
        sizes: Mapping[Path, int],
        *,
        is_quiet: bool,
        files: SessionFiles,
    ) -> None:
        super().__init__(session, sizes, is_quiet=is_quiet)
        self.project = files.project
        self._files = files
        self._runs: list[_OpenRun] = []
        self._title = ""
        self._answers: dict[str, dict[str, Any]] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._starts: dict[str, int] = {}
        self._answer_starts: dict[str, int] = {}
        self._boundary: ClaudeLine | None = None
        self._roots: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        self._spawned: dict[str, str] = {}
        self._metadata: dict[str, Any] = {}

    def read(self) -> None:
        """Read the files."""
        main = [] if self._files.main is None else self._read(self._files.main)
        agents = [(path, self._read(path)) for path in self._files.agents]
        everything = [*main, *(line for _, lines in agents for line in lines)]
        if not everything:
            return
        first = next((line.read for line in everything if line.read.cwd), None)
        if first is not None and first.cwd:
            self.project = first.cwd
            self._metadata = {"version": first.version, "branch": first.branch}
        self._look_up(everything)
        for line in main:
            self._read_line(line)
        for path, lines in sorted(agents, key=lambda each: _depth(each[0])):
            self._read_agent(path, lines)
        self._finish()
        self.count_lines([line.id for line in everything])

    @property
    def state(self) -> dict[str, Any]:
        """The state of the thread's checkpoints, beside their messages."""
        return {"project": self.project, "session": self._files.id, "title": self._title}

    def _read(self, path: Path) -> list[SessionLine]:
        found: list[SessionLine] = []
        early: list[tuple[RawLine, ClaudeLine]] = []
        at_us = 0
        for raw in raw_lines(path, self._sizes[path]):
            with self.bad.skipping(path.name, raw.number):
                line = read_line(raw.text)
                at_us = line.ts_us or at_us
                if not at_us:
                    early.append((raw, line))
                    continue
                found.extend(self._line(path, *each, at_us) for each in early)
                early.clear()
                found.append(self._line(path, raw, line, at_us))
        changed_us = path.stat().st_mtime_ns // 1000
        return found + [self._line(path, raw, line, changed_us) for raw, line in early]

    def _line(self, path: Path, raw: RawLine, line: ClaudeLine, ts_us: int) -> SessionLine:
        id_ = line.uuid
        if line.type == "assistant" and line.message is not None:
            id_ = line.message.id or id_
        elif line.type == "user" and line.results:
            tool = line.results[0].get("tool_use_id")
            id_ = tool if isinstance(tool, str) else id_
        if id_ is None:
            data = b"\0".join(
                (self.session.thread.encode(), path.name.encode(), b"%d" % raw.number, raw.text)
            )
            id_ = f"line-{sha256(data).hexdigest()[:32]}"
        return SessionLine(raw=raw, read=line, ts_us=ts_us, id=id_)

    def _look_up(self, lines: list[SessionLine]) -> None:
        ids = [line.id for line in lines]
        ids += [_run_id(line) for line in lines if line.read.is_prompt]
        ids += [f"agent-{line.read.agent_id}" for line in lines if line.read.agent_id]
        times = [line.ts_us for line in lines]
        self.session.look_up(ids, since_us=min(times), until_us=max(times))

    def _read_line(self, line: SessionLine) -> None:
        read = line.read
        if read.uuid in self._places:
            return  # the line was written twice
        if not _is_message(read):
            self._store_line(line)
            self._boundary = read if read.is_boundary else self._boundary
        elif read.is_sidechain:
            self._read_sidechain_line(line)
        else:
            if not self._runs or _is_prompt(read):
                self._start(line)
            open_run = self._runs[-1]
            open_run.turn.take(read, ts_us=line.ts_us)
            self._note(open_run, line)
            if not (read.is_summary and self._compact(line)):
                self._add_message(line)
        if read.uuid is not None and self.turns:
            self._places[read.uuid] = len(self.turns) - 1, self.turns[-1].length

    def _start(self, line: SessionLine) -> None:
        id_ = _run_id(line)
        prompt = line.read.message.content if line.read.message is not None else None
        meta = {"project": self.project, "session": self._files.id, **self._metadata}
        if isinstance(prompt, str):
            meta["prompt"] = title_of(prompt)
            self._title = self._title or title_of(prompt)
        run, recorder = self.start_run(id_, line.ts_us, meta)
        self._runs.append(_OpenRun(run, ClaudeTurn(recorder), line.ts_us, len(self.turns)))
        parent, keep = self._parent(line)
        self.follow(parent, keep, id=id_, ts_us=line.ts_us)

    def _parent(self, line: SessionLine) -> tuple[int | None, int]:
        """Return the turn that a prompt follows, and how many messages of its conversation."""
        if not self.turns:
            return None, 0
        last = len(self.turns) - 1, self.turns[-1].length
        return self._places.get(line.read.parent_uuid or "", last)

    def _compact(self, line: SessionLine) -> bool:
        """Read a summary as a compaction; return whether there is anything that it stands for."""
        boundary, self._boundary = self._boundary, None
        about = _mapping(None if boundary is None else boundary.compaction)
        last = len(self.turns) - 1, self.turns[-1].length
        parent, keep = self._places.get(boundary.logical_parent or "", last) if boundary is not None else last
        given: Any = _mapping(about.get("preservedMessages")).get("uuids")
        head: Any = _mapping(about.get("preservedSegment")).get("headUuid")
        kept = cast("list[Any]", given) if isinstance(given, list) else [head]
        starts = [self._starts[each] for each in kept if isinstance(each, str) and each in self._starts]
        content = line.read.message.content if line.read.message is not None else None
        tokens = _tokens(about.get("preTokens")), _tokens(about.get("postTokens"))
        return self.compact(
            parent,
            keep,
            Summary(messages=[{"role": "user", "content": content}], tokens=tokens),
            id=_run_id(line),
            ts_us=line.ts_us,
            upto=min([*starts, keep]),
        )

    def _note(self, open_run: _OpenRun, line: SessionLine) -> None:
        """Take note of what a line says about other lines: calls, subagents, the status of the run."""
        read = line.read
        for block in read.blocks:
            given = block.get("input")
            if (
                block.get("type") == "tool_use"
                and isinstance(given, dict)
                and isinstance(block.get("id"), str)
            ):
                self._tasks.setdefault(str(given.get("prompt")), block["id"])  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        data = read.tool_result
        if isinstance(data, dict) and isinstance(agent := data.get("agentId"), str) and read.results:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            self._spawned[agent] = line.id
        if read.type == "user" and _text(read).startswith(_INTERRUPTED):
            open_run.status = "interrupted"
        elif read.type == "assistant" and read.message is not None:
            open_run.status = "error" if read.message.model == SYNTHETIC else "ok"

    def _add_message(self, line: SessionLine) -> None:
        message = line.read.message
        if message is None:
            return
        turn = self.turns[-1]
        if line.read.uuid is not None:
            self._starts[line.read.uuid] = self._answer_starts.get(line.id, turn.length)
        if line.read.type == "user":
            turn.said.append({"role": "user", "content": message.content})
            return
        self._answer_starts.setdefault(line.id, turn.length)
        known = self._answers.get(line.id)
        if known is None:
            known = self._answers[line.id] = {"role": "assistant", "content": []}
            turn.said.append(known)
        known["content"] += line.read.blocks

    def _store_line(self, line: SessionLine, run: str | None = None) -> None:
        read = line.read
        if read.type not in KNOWN:
            self.unknown[read.type] += 1
        if read.type in _TITLES:
            title = decode_object(line.raw.text).get(_TITLES[read.type])
            self._title = title_of(title) if isinstance(title, str) else self._title
        if run is None and self._runs:
            run = self._runs[-1].run.id
        self.session.keep(line.raw, id=line.id, kind=span_label(read.type), ts_us=line.ts_us, run=run)

    def _read_sidechain_line(self, line: SessionLine) -> None:
        """Read a subagent's line in the file of the session, as older versions of Claude Code write them."""
        read = line.read
        root = self._roots.get(read.parent_uuid or "") or read.uuid or line.id
        if read.uuid is not None:
            self._roots[read.uuid] = root
        if not self._runs:
            self._store_line(line)
            return
        turn = self._runs[-1].turn
        tool = self._tasks.get(_text(read)) if root == read.uuid else None
        name = turn.chain(read.agent_id or root, agent="subagent", tool=tool, ts_us=line.ts_us)
        turn.take(read, ts_us=line.ts_us, chain=name)

    def _read_agent(self, path: Path, lines: list[SessionLine]) -> None:
        """Read the file of a subagent."""
        about = _agent_metadata(path)
        name = path.stem.removeprefix("agent-")
        called = about.get("toolUseId")
        tool = called if called and isinstance(called, str) else self._spawned.get(name)
        open_run = self._owner(tool, lines)
        if open_run is None:
            self._waiting.update(line.id for line in lines)
            self.is_over = False
            return
        agent = span_label(about.get("agentType") or "subagent")
        for line in lines:
            if not _is_message(line.read):
                self._store_line(line, open_run.run.id)
                continue
            chain = open_run.turn.chain(name, agent=agent, tool=tool, ts_us=line.ts_us)
            open_run.turn.take(line.read, ts_us=line.ts_us, chain=chain)

    def _owner(self, tool: str | None, lines: list[SessionLine]) -> _OpenRun | None:
        """Return the run that started a subagent, by its call or else its time; ``None`` before the call."""
        for open_run in self._runs:
            if tool is not None and open_run.turn.recorder.span_of(tool) is not None:
                return open_run
        if tool is not None and not self._is_quiet:
            return None
        first_us = min((line.ts_us for line in lines), default=0)
        earlier = [open_run for open_run in self._runs if open_run.began_us <= first_us]
        return earlier[-1] if earlier else self._runs[0] if self._runs else None

    def _finish(self) -> None:
        for open_run in self._runs[:-1]:
            self._close(open_run)
        if not self._runs:
            return
        last = self._runs[-1]
        agents_done = all(last.turn.is_done(name) for name in last.turn.agents)
        if self._is_quiet or (last.turn.is_done(MAIN) and agents_done):
            self._close(last)
            return
        self.is_over = False
        self._waiting.update(last.turn.flush(unfinished=False))
        del self.turns[last.first_turn :]

    def _close(self, open_run: _OpenRun) -> None:
        open_run.turn.finish()
        self.end_run(open_run.run, open_run.turn.last_us, open_run.status)


def _is_message(line: ClaudeLine) -> bool:
    """Return whether a line is part of the conversation: an answer, or input of the model."""
    if line.message is None:
        return False
    return line.type == "assistant" or (line.type == "user" and bool(line.blocks))


def _is_prompt(line: ClaudeLine) -> bool:
    return line.is_prompt and not line.is_summary and not _text(line).startswith(_NO_PROMPT)


def _run_id(line: SessionLine) -> str:
    return f"claude-{line.read.uuid or line.id}"


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _tokens(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < MAX_TOKENS else None


def _text(line: ClaudeLine) -> str:
    first = line.blocks[0].get("text") if line.blocks else None
    return first if isinstance(first, str) else ""


def _agent_metadata(path: Path) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(path.with_suffix(".meta.json").read_bytes())
    except (OSError, ValueError, RecursionError):  # a ValueError is also what msgspec raises
        return {}
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def _depth(path: Path) -> int:
    depth = _agent_metadata(path).get("spawnDepth")
    return depth if isinstance(depth, int) else 1


def _session_of_agent(path: Path) -> str | None:
    """Return the session that a subagent's file names, if its folder does not."""
    for raw in raw_lines(path, path.stat().st_size):
        try:
            return read_line(raw.text).session
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def find_sessions(source: Path) -> Iterator[SessionFiles]:
    """Find the sessions of all projects in a folder, of one project's folder, or of one file."""
    if source.is_file():
        agents = sorted((source.parent / source.stem / "subagents").glob("agent-*.jsonl"))
        yield SessionFiles(project=source.parent.name, id=source.stem, main=source, agents=tuple(agents))
        return
    folders: dict[Path, Path] = {}
    for folder in [source, *sorted(each for each in source.iterdir() if each.is_dir())]:
        folders.setdefault(folder.resolve(), folder)  # a link to another one is not counted twice
    for folder in folders.values():
        yield from _sessions_of_project(folder)


def _sessions_of_project(folder: Path) -> Iterator[SessionFiles]:
    agents: dict[str, list[Path]] = {}
    mains: dict[str, Path] = {}
    for path in sorted(
        each for each in folder.glob("*.jsonl") if each.is_file()
    ):  # a pipe would wait forever
        if path.stem.startswith("agent-"):
            agents.setdefault(_session_of_agent(path) or path.stem, []).append(path)
        else:
            mains[path.stem] = path
    for path in sorted(folder.glob("*/subagents/agent-*.jsonl")):
        agents.setdefault(path.parent.parent.name, []).append(path)
    for id_ in dict.fromkeys([*mains, *agents]):
        yield SessionFiles(
            project=folder.name, id=id_, main=mains.get(id_), agents=tuple(agents.get(id_, ()))
        )
