"""Importing a folder part by part, as the table lists it.

All parts are looked at before the first one is written: a file that cannot be read stops the import while
nothing has changed. Parts that have no loader yet are counted and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.errors import InvalidInput, NotFound, Unreachable
from treering.importers.report import FileReport, ImportReport
from treering.importers.table import PARTS, Part, Root, loaded

if TYPE_CHECKING:
    from treering.importers.report import Progress
    from treering.store import Store

NOT_YET: Final = "this version has no place for these yet; they stay where they are"


def import_folder(
    name: str,
    roots: Mapping[Root, Path],
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    options: Mapping[str, Any] | None = None,
) -> ImportReport:
    """Import what the table lists for ``name`` below these roots."""
    for root in roots.values():
        if not root.is_dir():
            raise NotFound(f"there is no folder {str(root)!r}; give the folder that {name} keeps its data in")
    found = list(_found(name, roots))
    source = str(roots["data"])
    if not found:
        expected = ", ".join(part.paths[0] for part in PARTS[name] if part.root in roots)
        raise NotFound(f"{source} holds nothing that {name} leaves behind (looked for {expected})")
    files = _read(found, store, None, dry_run=True, options=options)
    if not dry_run:
        files = _read(found, store, on_progress, dry_run=False, options=options)
    return ImportReport(importer=name, source=source, dry_run=dry_run, files=files)


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    with opened(path) as file:
        data = file.read()
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is not JSON ({error}); repair it, nothing was imported") from None


def opened(path: Path) -> Any:
    """A file for reading bytes."""
    try:
        return path.open("rb")
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error


def _found(name: str, roots: Mapping[Root, Path]) -> Iterator[tuple[Part, Path, str]]:
    """Each part with its files, and their paths as they are reported."""
    for part in PARTS[name]:
        root = roots.get(part.root)
        if root is None:
            continue
        seen: set[Path] = set()
        for pattern in part.paths:
            for path in sorted(root.glob(pattern)):
                if path.is_file() and path not in seen:
                    seen.add(path)
                    shown = path.relative_to(root).as_posix()
                    yield part, path, shown if part.root == "data" else f"{part.root}/{shown}"


def _read(
    found: list[tuple[Part, Path, str]],
    store: Store,
    on_progress: Progress | None,
    *,
    dry_run: bool,
    options: Mapping[str, Any] | None,
) -> tuple[FileReport, ...]:
    reports: list[FileReport] = []
    for part, path, shown in found:
        if part.load is not None:
            made = loaded(part.load)(path, store, on_progress=on_progress, dry_run=dry_run, **(options or {}))
            reports += [msgspec.structs.replace(each, path=shown) for each in made]
        elif part.count is not None:
            count = loaded(part.count)(path)
            reports.append(
                FileReport(path=shown, holds=part.holds, found=count, left_out=count, note=NOT_YET)
            )
    return tuple(reports)
