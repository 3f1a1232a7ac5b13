"""Importing a history that was exported as JSON lines (see `lines`).

The file is read twice. The first time every line is checked, against the file and against the store, and
nothing is written; all bad lines are reported together. The second time it is stored.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from treering.errors import Corrupt, NotFound, Unreachable
from treering.importers.histories import Histories
from treering.importers.inspection import Inspection, numbered
from treering.importers.lines import CheckpointLine, EventLine, RefLine, RewindLine, content_of, read_line
from treering.importers.meanings import event_of, made_of, rewind_of
from treering.importers.report import ImportReport, Progress
from treering.store import Store


def import_jsonl(
    source: str | Path | IO[bytes],
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Store the histories of a file (or of what can be read as one); what is there already stays as it is.

    Bad lines raise `InvalidInput` with their numbers, before anything is written.
    """
    with _opened(source) as (lines, name):
        histories = Histories(store)
        checked = Inspection(lines, name, histories)
        if not dry_run and (checked.new or checked.new_rewinds or checked.new_events or checked.moving):
            _Writing(lines, checked, histories, on_progress).run()
        return ImportReport(importer="jsonl", source=name, dry_run=dry_run, files=checked.report(name))


@contextmanager
def _opened(source: str | Path | IO[bytes]) -> Generator[tuple[IO[bytes], str]]:
    """The source as something that can be read twice, and its name."""
    if not isinstance(source, (str, Path)):
        if source.seekable():
            source.seek(0)
            yield source, _name_of(source)
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(source, copy)
            yield copy, _name_of(source)
        return
    path = Path(source)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise NotFound(
            f"there is no file {str(path)!r}; give the path of an exported history, or -"
        ) from None
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error
    with file:
        yield file, str(path)


def _name_of(source: IO[bytes]) -> str:
    name: Any = getattr(source, "name", None)
    return name.strip("<>") if isinstance(name, str) else "stdin"


class _Writing:
    """The second reading."""

    def __init__(
        self, lines: IO[bytes], checked: Inspection, histories: Histories, on_progress: Progress | None
    ) -> None:
        self._lines = lines
        self._checked = checked
        self._histories = histories
        self._on_progress = on_progress

    def run(self) -> None:
        done = 0
        for _, text in numbered(self._lines):
            line = read_line(text)
            if isinstance(line, CheckpointLine):
                if line.id in self._checked.new:
                    self._histories.add(made_of(line), size=len(text))
            elif isinstance(line, RewindLine):
                if line.id in self._checked.new_rewinds:
                    self._histories.add_event(rewind_of(line))
            elif isinstance(line, EventLine):
                if line.id in self._checked.new_events:
                    self._histories.add_event(
                        event_of(line),
                        slots={address: content_of(each) for address, each in line.slots.items()},
                        objects=[content_of(each) for each in line.objects],
                        lists={each: (there.checkpoint, there.name) for each, there in line.lists.items()},
                        by_index=line.by_index,
                    )
            elif isinstance(line, RefLine):
                self._histories.set_further_head(line.name, line.thread, line.namespace, line.checkpoint)
                continue
            else:
                continue
            done += 1
            if self._on_progress is not None:
                self._on_progress(done, self._checked.count)
        self._histories.finish()
        missing = self._checked.new - self._histories.owners(self._checked.new).keys()
        if missing:
            raise Corrupt(
                f"{len(missing)} checkpoints are missing after the import, {min(missing)!r} first; try again"
            )
        for head in self._checked.heads:
            self._histories.set_head(head)
