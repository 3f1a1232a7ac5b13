"""Read the lines of other tools' files, and count those that cannot be read.

Every importer reads with `raw_lines` and checks what it reads inside ``with bad.skipping(file, number)``.
**Invariant:** a line (or row, or entry) that cannot be read costs itself and nothing else: it is skipped,
counted, and named with its file, its number and the reason. ``strict`` is `refuse_bad`: it turns the report
of a dry run into an error before anything is written.

Lines of other tools are not always valid JSON: JavaScript may cut text in the middle of a character and write
a lone surrogate; Python writes ``NaN``. Such lines are read all the same (`decode_line`): a session must not
lose a message because of half an emoji.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.errors import Corrupt, InvalidInput, Unreachable

if TYPE_CHECKING:
    from treering.importers.registry import ImportReport

UNREADABLE: Final = (
    msgspec.MsgspecError,
    InvalidInput,
    Corrupt,
    ValueError,
    OverflowError,
    RecursionError,
)
"""What reading a bad line may raise. Everything else is a mistake of the importer, or of the store."""

_BOM: Final = b"\xef\xbb\xbf"
_MAX_NAMED: Final = 1000
_MAX_SHOWN: Final = 20
_MAX_REASON_CHARS: Final = 300


class RawLine(msgspec.Struct, frozen=True):
    """A line of a file, without its line feed."""

    number: int
    text: bytes
    is_torn: bool = False
    """Whether it is the last line and was cut off, or is still being written."""


class BadLines:
    """What could not be read. ``count`` is exact, of very many only the first 1,000 are named."""

    def __init__(self) -> None:
        self.count = 0
        self._named: list[str] = []
        self._place: str | tuple[str, int] = ""

    @property
    def named(self) -> tuple[str, ...]:
        """One text for each: where it is, and why it cannot be read."""
        more = self.count - len(self._named)
        return (*self._named, *([f"and {more:,} more"] if more else []))

    def add(self, place: str, why: object) -> None:
        """Count what cannot be read."""
        self.count += 1
        if len(self._named) < _MAX_NAMED:
            reason = " ".join(str(why).split())[:_MAX_REASON_CHARS] or type(why).__name__
            self._named.append(f"{place}: {reason}" if place else reason)

    def skipping(self, file: str, number: int | None = None) -> BadLines:
        """Return a context that skips and counts a line of ``file``, or an entry that ``file`` describes."""
        self._place = file if number is None else (file, number)
        return self

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, UNREADABLE):
            return False
        place = self._place
        self.add(place if isinstance(place, str) else f"{place[0]} line {place[1]}".strip(), error)
        return True


def raw_lines(path: Path, size: int | None = None, *, with_torn: bool = False) -> Iterator[RawLine]:
    """Iterate over the lines of a file that are not blank, up to a size that was read before.

    A last line that is cut off is still being written: it is left for the next import, unless ``with_torn``.
    """
    left = size
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            text = line
            if left is not None:
                text = line[:left]
                left -= len(text)
            if number == 1:
                text = text.removeprefix(_BOM)
            if text.strip():
                is_torn = not text.endswith(b"\n") and not _is_json(text)
                if not is_torn or with_torn:
                    yield RawLine(number, text.rstrip(b"\r\n"), is_torn)
            if left == 0:
                return


def open_file(path: Path) -> Any:
    """Open a file for reading bytes."""
    try:
        return path.open("rb")
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    with open_file(path) as file:
        data = file.read()
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not JSON ({error}); repair it") from None


def decode_line(text: bytes) -> Any:
    """Decode a line. Raise `msgspec.DecodeError` if it is not JSON even by these rules."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise msgspec.DecodeError(str(error)) from None


def decode_object(text: bytes) -> dict[str, Any]:
    """Decode a line that holds an object. Raise `msgspec.DecodeError` for anything else."""
    value = decode_line(text)
    if not isinstance(value, dict):
        raise msgspec.DecodeError(f"expected an object, not a {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType] - JSON has text for keys


def refuse_bad(report: ImportReport) -> None:
    """Raise `InvalidInput` if anything could not be read: the end of a strict import, before it wrote."""
    if not report.bad:
        return
    more = len(report.bad) - _MAX_SHOWN
    lines = [*report.bad[:_MAX_SHOWN], *([f"... and {more:,} more"] if more > 0 else [])]
    raise InvalidInput(
        f"{report.source}: {len(report.bad):,} cannot be read, and nothing was imported (strict)\n"
        + "\n".join(f"  {each}" for each in lines)
    )


def _is_json(text: bytes) -> bool:
    try:
        decode_line(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
