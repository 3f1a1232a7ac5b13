"""Import JSON Lines logs: transcripts of Agentry Lab, and session logs of a chat agent.

A file is the log of the thread that it is named after, or that `NAMES` beside it names. A line that cannot be
read is skipped and reported. **Invariant:** a line that the store has already, from an earlier import or
because it wrote the file itself, is not imported again; a line that occurs twice is two events.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import NUMBER_BITS, Draft
from treering.core.ids import check_id
from treering.errors import InvalidInput
from treering.importers.lines import BadLines, raw_lines
from treering.importers.registry import FileReport
from treering.threads import chats, transcripts
from treering.threads.line_files import LineFormat, ThreadLog, name_of

if TYPE_CHECKING:
    from treering.importers.registry import Progress
    from treering.store import Store

NAMES: Final = "threads.json"
"""A file of ``{"<file name>": {"thread", "namespace"}}``, for ids that are no file names."""
_EVENTS_PER_COMMIT: Final = 500


class ThreadName(msgspec.Struct, frozen=True, kw_only=True):
    """The thread of a file."""

    thread: str
    namespace: str = ""


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: bytes
    content: Any
    columns: dict[str, Any]


class _Log:
    def __init__(self) -> None:
        self.lines: list[_Line] = []
        self.bad = BadLines()
        self.is_torn = False


def load_transcript(path: Path, store: Store, **options: Any) -> list[FileReport]:
    """Import ``transcripts/<thread>.jsonl`` of Agentry Lab."""
    return _load(path, store, transcripts.LINES, "transcript events", **options)


def load_session(path: Path, store: Store, **options: Any) -> list[FileReport]:
    """Import ``sessions/<thread>.jsonl`` of a chat agent."""
    return _load(path, store, chats.LINES, "session log entries", **options)


def _load(
    path: Path,
    store: Store,
    format: LineFormat,
    holds: str,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    **_: Any,
) -> list[FileReport]:
    of = _thread_of(path)
    read = _read(path, of, format)
    log = ThreadLog(store.engine, store.space, of.thread, of.namespace, kind=format.kind)
    there = Counter(map(name_of, log.each()))
    new: list[_Line] = []
    for line in read.lines:
        there[line.name] -= 1
        if there[line.name] < 0:
            new.append(line)
    for start in range(0, 0 if dry_run else len(new), _EVENTS_PER_COMMIT):
        draft = Draft(store.space)
        for line in new[start : start + _EVENTS_PER_COMMIT]:
            log.put(draft, line.content, id=line.id, **line.columns)
        store.commit(draft)
        if on_progress is not None:
            on_progress(min(start + _EVENTS_PER_COMMIT, len(new)), len(new))
    notes = [f"{read.bad.count} cannot be read"] if read.bad.count else []
    notes += ["the last line is incomplete"] if read.is_torn else []
    left_out = read.bad.count + read.is_torn
    return [
        FileReport(
            path=str(path),
            holds=holds,
            found=len(read.lines) + left_out,
            new=len(new),
            known=len(read.lines) - len(new),
            left_out=left_out,
            note="; ".join(notes),
            bad=read.bad.named,
        )
    ]


def _thread_of(path: Path) -> ThreadName:
    names = path.with_name(NAMES)
    known: dict[str, ThreadName] = {}
    if names.is_file():
        try:
            known = msgspec.json.decode(names.read_bytes(), type=dict[str, ThreadName])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{names} cannot be read ({error}); repair or remove it") from None
    of = known.get(path.name) or ThreadName(thread=path.stem)
    check_id(of.thread, f"{path}: thread id")
    return of


def _read(path: Path, of: ThreadName, format: LineFormat) -> _Log:
    log = _Log()
    seen: Counter[bytes] = Counter()
    key = b"\0".join((format.kind.encode(), of.namespace.encode(), of.thread.encode()))
    for raw in raw_lines(path, with_torn=True):
        if raw.is_torn:
            log.is_torn = True
            continue
        text = raw.text.strip()
        seen[text] += 1
        with log.bad.skipping("", raw.number):
            content, columns = format.parse(text)
            if not 0 <= columns["ts_us"] < 1 << NUMBER_BITS:
                raise InvalidInput("the time is out of range")
            digest = sha256(b"\0".join((key, b"%d" % seen[text], text))).hexdigest()
            log.lines.append(
                _Line(
                    id=f"imported-{digest[:32]}", name=format.name_of(text), content=content, columns=columns
                )
            )
    return log
