"""Importing what a CianaParrot agent is and knows: ``IDENTITY.md``, ``AGENT.md``, ``MEMORY.md`` and skills.

The first three become documents of these names that load into every context, a skill becomes
``skills/<name>``. A file that was edited since the last import is taken over as a new version; a document
that was changed in the store since then is left as it is, and the report says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.importers.report import FileReport
from treering.views.memory.documents import MemoryDocument, Provenance
from treering.views.memory.markdown_files import read_file

if TYPE_CHECKING:
    from pathlib import Path

    from treering.importers.report import Progress
    from treering.store import Store

_SKILL: Final = "SKILL.md"
_SOURCE: Final = "imported from CianaParrot: "


def load_memory_file(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import one Markdown file, with its front matter."""
    is_skill = path.name == _SKILL
    name = f"skills/{path.parent.name}" if is_skill else path.stem
    read = read_file(path.parent, path.name).document
    document = MemoryDocument(
        id=name, content=read.content, metadata={"auto_load": not is_skill} | read.metadata
    )
    memory = store.memory
    before = memory.get(name, include_expired=True)
    new = known = left_out = 0
    note = ""
    if before is not None and _says_the_same(before, document):
        known = 1
    elif before is not None and not _is_imported(before):
        left_out, note = 1, f"{name!r} was changed in the store since; merge them by hand"
    else:
        new = 1
        if not dry_run:
            version = 0 if before is None else before.version
            memory.save(document, if_version=version, provenance=Provenance(source=_SOURCE + path.name))
    if on_progress is not None:
        on_progress(1, 1)
    return [
        FileReport(
            path=str(path),
            holds="memory files",
            found=1,
            new=new,
            known=known,
            left_out=left_out,
            note=note,
        )
    ]


def _is_imported(document: MemoryDocument) -> bool:
    origin = document.provenance
    return origin is not None and (origin.source or "").startswith(_SOURCE)


def _says_the_same(there: MemoryDocument, read: MemoryDocument) -> bool:
    times = {"created_at", "updated_at"}
    kept = {key: value for key, value in there.metadata.items() if key not in times}
    given: dict[str, Any] = {"tags": list[str]()}
    given |= {key: value for key, value in read.metadata.items() if key not in times}
    return there.content == read.content and kept == given
