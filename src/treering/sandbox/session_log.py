"""The session log: one file of JSON lines per sandbox session, for people and programs that read along.

``{tag}_{provider}_{sandbox_id}_{agent}_{timestamp}.jsonl`` begins with one ``_meta`` line, has a ``_prompt``
line for every run, everything that the program wrote as it came, and ends with ``_sessionEnd``. A payload
that is a JSON object stands there byte for byte; a line that is none is wrapped (``{"_stdout": "..."}``).
**Invariant:** whoever logs never waits for the disk, and never fails because of it: what goes wrong is said
once, as a warning.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

import msgspec

from treering.core.clock import Clock, SystemClock, to_iso
from treering.core.ids import file_name

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS: Final = frozenset({"_meta", "_prompt", "_sessionEnd"})


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a log."""

    tag: str
    provider: str
    agent: str
    model: str | None
    sandbox_id: str
    timestamp: str


class SessionLog:
    """One log, written by a thread of its own."""

    def __init__(self, folder: Path, meta: SessionMeta, *, clock: Clock | None = None) -> None:
        stamp = re.sub("[:.]", "-", meta.timestamp)
        name = f"{meta.tag}_{meta.provider}_{meta.sandbox_id}_{meta.agent}_{stamp}"
        self.path = folder / f"{file_name(name)}.jsonl"
        self._clock = clock or SystemClock()
        self._queue: SimpleQueue[bytes | Event | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="treering-session-log", daemon=True)
        self._is_open = True
        self._failure: str | None = None
        self._has_complained = False
        self._queue.put(_line({"_meta": meta}))
        self._thread.start()

    def prompt(self, text: str) -> None:
        """A run begins."""
        self._queue.put(_line({"_prompt": {"text": text}}))

    def payload(self, data: bytes, *, source: str = "_stdout") -> None:
        """A line that the program wrote."""
        line = data.rstrip(b"\r\n")
        if line:
            self._queue.put(_raw(line, source) + b"\n")

    def flush(self) -> None:
        """Return when everything so far is in the file."""
        if self._is_open:
            done = Event()
            self._queue.put(done)
            done.wait()
            self._complain()

    def close(self) -> None:
        """Write the last line and let the file go. Closing twice changes nothing."""
        if self._is_open:
            self._is_open = False
            self._queue.put(_line({"_sessionEnd": {"timestamp": iso_of(self._clock.now_us())}}))
            self._queue.put(None)
            self._thread.join()
            self._complain()

    def _write(self) -> None:
        file: int | None = None
        while True:
            item = self._queue.get()
            if item is None:
                break
            if isinstance(item, Event):
                item.set()
                continue
            if self._failure is not None:
                continue
            try:
                if file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    file = os.open(self.path, _FLAGS, 0o600)
                _write_all(file, item)
            except OSError as error:
                self._failure = str(error)
        if file is not None:
            os.close(file)

    def _complain(self) -> None:
        if self._failure is not None and not self._has_complained:
            self._has_complained = True
            warnings.warn(
                f"the session log {self.path} cannot be written: {self._failure}",
                RuntimeWarning,
                stacklevel=3,
            )


def iso_of(ts_us: int) -> str:
    """A time as the logs have it: ISO 8601, milliseconds, Z."""
    return f"{to_iso(ts_us // 1000 * 1000).removesuffix('+00:00')[:23].ljust(19)}Z"


def _raw(line: bytes, source: str) -> bytes:
    """A payload as it stands in the log: itself, if it is a JSON object of the program's own."""
    if source == "_stdout" and line.startswith(b"{"):
        try:
            value: Any = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        else:
            if not _OURS & value.keys():
                return line
    return msgspec.json.encode({source: line.decode("utf-8", "replace")})


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
