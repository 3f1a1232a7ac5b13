"""Documents as Markdown files: where a document lies, what its file says, what to write into it.

``alice/tone`` is ``alice/tone.md``; an id that no file can be named after gets a name of its own and stands
in the front matter as ``id``. The body of the file is the content, to the byte.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from treering.core.encoding import encode_json
from treering.core.ids import check_id, file_name
from treering.errors import InvalidInput
from treering.views.memory.documents import MAX_DOCUMENT_BYTES, MemoryDocument, checked_metadata
from treering.views.memory.front_matter import Markdown, edited, metadata_of, split

SUFFIX: Final = ".md"

_PART: Final = re.compile(r"[\w(][\w .,()+@&='!-]*", re.UNICODE)
_MAX_PART_BYTES: Final = 200
_TIMES: Final = frozenset({"created_at", "updated_at"})


class MarkdownFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read: its path below the root, its parts, the hash of its bytes, the document in it."""

    path: str
    parts: Markdown
    digest: str
    document: MemoryDocument

    @property
    def id(self) -> str:
        """The document's id."""
        return self.document.id

    def says(self, document: MemoryDocument) -> bool:
        """Whether the file and a stored document say the same; when they were saved is no matter."""
        return self.document.content == document.content and _told(self.document) == _told(document)


def path_of(id: str) -> str:
    """Where a document's file is, below the root."""
    parts = id.split("/")
    if all(_is_plain(part) for part in parts):
        return "/".join(parts) + SUFFIX
    return file_name(id) + SUFFIX


def walk(root: Path) -> Iterator[str]:
    """The Markdown files below a folder, in order; hidden ones and symbolic links are left alone."""
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for name in files:
            place = Path(folder, name)
            if name.endswith(SUFFIX) and not name.startswith(".") and not place.is_symlink():
                found.append(place.relative_to(root).as_posix())
    yield from sorted(found)


def read_file(root: Path, path: str) -> MarkdownFile:
    """Read a document's file; what cannot be one is `InvalidInput`."""
    data = (root / path).read_bytes()
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidInput(f"{path} has {len(data):,} bytes, the limit is {MAX_DOCUMENT_BYTES:,}; split it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it"
        ) from None
    parts = split(text, path)
    metadata = metadata_of(parts, path)
    try:
        name = check_id(metadata.pop("id", path.removesuffix(SUFFIX)), "memory id")
        document = MemoryDocument(id=name, content=parts.body, metadata=checked_metadata(metadata))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return MarkdownFile(path=path, parts=parts, digest=sha256(data).hexdigest(), document=document)


def text_for(document: MemoryDocument, file: MarkdownFile | None, *, with_times: bool = False) -> str:
    """What a document's file shall say, as close as can be to what it says.

    Times of saving are written where the file has them already, and ``with_times``.
    """
    path = path_of(document.id) if file is None else file.path
    before: dict[str, Any] = {} if file is None else metadata_of(file.parts, path)
    metadata = _wanted(document, before, with_times=with_times)
    if path.removesuffix(SUFFIX) != document.id or "id" in before:
        metadata["id"] = document.id
    parts = Markdown("", document.content) if file is None else file.parts
    return edited(parts, metadata, document.content, path).text


def _wanted(document: MemoryDocument, before: dict[str, Any], *, with_times: bool) -> dict[str, Any]:
    """The front matter: values that mean what they meant stay as they are written."""
    wanted: dict[str, Any] = {}
    meant = checked_metadata({key: value for key, value in before.items() if key != "id"})
    for key, value in document.metadata.items():
        if key in before and _same(meant.get(key), value):
            wanted[key] = before[key]
        elif key in _TIMES and not with_times and key not in before:
            continue
        elif key in before or value not in (None, [], False):
            wanted[key] = _for_yaml(value)
    return wanted


def _told(document: MemoryDocument) -> bytes:
    """All that a person would see of the metadata, in one form."""
    metadata = {
        key: value
        for key, value in document.metadata.items()
        if key not in _TIMES and not (key in {"tags", "auto_load", "expires_at"} and not value)
    }
    return encode_json(metadata)


def _same(one: Any, other: Any) -> bool:
    return encode_json(one) == encode_json(other)


def _for_yaml(value: Any) -> Any:
    """A datetime as text that YAML reads as the same moment in every dialect."""
    return value.replace(microsecond=0) if isinstance(value, datetime) else value


def _is_plain(part: str) -> bool:
    return (
        _PART.fullmatch(part) is not None
        and part[-1] not in " ."
        and len(part.encode()) + len(SUFFIX) <= _MAX_PART_BYTES
    )
