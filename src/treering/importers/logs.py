"""Import JSON Lines logs: transcripts of Agentry Lab, and session logs of a chat agent.

A file is the log of the thread that it is named after. Each line becomes an event whose id is made from the
line and from how often it occurred before, so importing a file again adds only its new lines. All lines are
read before the first event is written; only an incomplete last line is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import NUMBER_BITS, Draft
from treering.core.clock import from_datetime
from treering.core.ids import check_id
from treering.errors import InvalidInput, TreeringError
from treering.importers.history_writer import HistoryWriter
from treering.importers.registry import FileReport, open_file
from treering.threads import chats, transcripts
from treering.threads.transcripts import ThreadLog, TranscriptEvent, columns_of

if TYPE_CHECKING:
    from treering.importers.registry import Progress
    from treering.store import Store

_EVENTS_PER_COMMIT: Final = 500
_MAX_BAD_LINES: Final = 20


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    content: Any
    columns: dict[str, Any]


class _ChatLine(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: Any
    ts: str
    channel: str = ""
    user_id: str | int | None = None


def load_transcript(path: Path, store: Store, **options: Any) -> list[FileReport]:
    """Import ``transcripts/<thread>.jsonl`` of Agentry Lab."""
    return _load(path, store, transcripts.KIND, "transcript events", _transcript_event, **options)


def load_session(path: Path, store: Store, **options: Any) -> list[FileReport]:
    """Import ``sessions/<thread>.jsonl`` of a chat agent."""
    return _load(path, store, chats.KIND, "session log entries", _session_line, **options)


def _load(
    path: Path,
    store: Store,
    kind: str,
    holds: str,
    read: Callable[[bytes], tuple[Any, dict[str, Any]]],
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    **_: Any,
) -> list[FileReport]:
    thread = check_id(path.stem, f"{path}: thread id")
    lines, is_torn = _lines(path, thread, kind, read)
    known = HistoryWriter(store).events(thread, "")
    new = [line for line in lines if line.id not in known]
    log = ThreadLog(store.engine, store.space, thread, "", kind=kind)
    for start in range(0, 0 if dry_run else len(new), _EVENTS_PER_COMMIT):
        draft = Draft(store.space)
        for line in new[start : start + _EVENTS_PER_COMMIT]:
            log.put(draft, line.content, id=line.id, **line.columns)
        store.commit(draft)
        if on_progress is not None:
            on_progress(min(start + _EVENTS_PER_COMMIT, len(new)), len(new))
    return [
        FileReport(
            path=str(path),
            holds=holds,
            found=len(lines) + is_torn,
            new=len(new),
            known=len(lines) - len(new),
            left_out=int(is_torn),
            note="the last line is incomplete" if is_torn else "",
        )
    ]


def _lines(
    path: Path, thread: str, kind: str, read: Callable[[bytes], tuple[Any, dict[str, Any]]]
) -> tuple[list[_Line], bool]:
    lines: list[_Line] = []
    bad: list[str] = []
    seen: Counter[bytes] = Counter()
    is_torn = False
    for number, text, is_ended in _numbered(path):
        try:
            content, columns = read(text)
            if not 0 <= columns["ts_us"] < 1 << NUMBER_BITS:
                raise InvalidInput("the time is out of range")
        except msgspec.DecodeError as error:
            is_torn = not is_ended and not isinstance(error, msgspec.ValidationError)
            if not is_torn:
                bad.append(f"  line {number}: {error}")
        except (TreeringError, ValueError) as error:
            bad.append(f"  line {number}: {error}")
        else:
            seen[text] += 1
            digest = sha256(
                b"\0".join((kind.encode(), thread.encode(), b"%d" % seen[text], text))
            ).hexdigest()
            lines.append(_Line(id=f"imported-{digest[:32]}", content=content, columns=columns))
    if bad:
        more = [f"  ... and {len(bad) - _MAX_BAD_LINES} more"] if len(bad) > _MAX_BAD_LINES else []
        raise InvalidInput(
            "\n".join([f"{path}: {len(bad)} bad line(s), nothing was imported", *bad[:_MAX_BAD_LINES], *more])
        )
    return lines, is_torn


def _numbered(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """The lines that are not blank, with their numbers, and whether each ends with a newline."""
    with open_file(path) as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield number, text.strip(), text.endswith(b"\n")


def _transcript_event(text: bytes) -> tuple[Any, dict[str, Any]]:
    event = msgspec.json.decode(text, type=TranscriptEvent)
    return event.content, columns_of(event)


def _session_line(text: bytes) -> tuple[Any, dict[str, Any]]:
    line = msgspec.json.decode(text, type=_ChatLine)
    user = None if line.user_id is None else str(line.user_id)
    return line.content, {
        "data": {"channel": line.channel, "user_id": user},
        "ts_us": from_datetime(datetime.fromisoformat(line.ts)),
        "role": check_id(line.role, "role"),
    }
