"""Session logs of a chat: who said what, when and where, for a person to read.

One line a message, ``{"role", "content", "ts", "channel", "user_id"}``, in the journal and (with a folder)
in ``<folder>/<thread>.jsonl``. **Invariant:** a message never fails with its log: what goes wrong there is a
warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.clock import to_iso
from treering.core.encoding import encode_json
from treering.core.ids import file_name
from treering.errors import TreeringError
from treering.views.line_files import LineFile
from treering.views.logs import Entry, Log

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine

KIND: Final = "chat.line"


class ChatLine(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a chat."""

    role: str
    content: Any
    ts: str
    """ISO 8601 with offset, UTC."""
    channel: str
    user_id: str | None


class ChatLog:
    """The log of one chat thread."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        thread_id: str,
        namespace: str,
        *,
        channel: str,
        clock: Clock,
        folder: Path | None = None,
    ) -> None:
        self._log = Log(engine, space, thread_id, namespace, kind=KIND)
        self._channel = channel
        self._clock = clock
        self._file: LineFile | None = None
        if folder is not None:
            self._file = LineFile(folder / f"{file_name(thread_id)}.jsonl", self._lines)

    @property
    def path(self) -> Path | None:
        """The file that grows along, if there is one."""
        return None if self._file is None else self._file.path

    def append(self, role: str, content: Any, *, user_id: str | None = None) -> bool:
        """Add a message; ``False`` (and a warning that says why) when it could not be logged."""
        try:
            self._log.append(
                content,
                {"channel": self._channel, "user_id": user_id},
                ts_us=self._clock.now_us(),
                role=role,
            )
            if self._file is not None:
                self._file.catch_up()
        except TreeringError as error:
            warnings.warn(
                f"a message of {self._channel!r} was not logged: {error}", RuntimeWarning, stacklevel=2
            )
            return False
        return True

    def read(self, *, last: int | None = None) -> list[ChatLine]:
        """The messages in order, all or the last ones."""
        return [_line(entry) for entry in (self._log.each() if last is None else self._log.last(last))]

    def _lines(self, *, skip: int = 0, after: str | None = None) -> Iterator[tuple[str, bytes]]:
        for entry in islice(self._log.each(after=after), skip, None):
            yield entry.cursor, encode_json(msgspec.structs.asdict(_line(entry)), keep_order=True)


def _line(entry: Entry) -> ChatLine:
    return ChatLine(
        role=entry.event.role or "",
        content=entry.content,
        ts=to_iso(entry.event.ts_us),
        channel=entry.data.get("channel", ""),
        user_id=entry.data.get("user_id"),
    )
