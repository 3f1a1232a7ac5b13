"""Documents as Markdown files: where a document lies, what its file says, what to write into it.

``alice/tone`` is ``alice/tone.md``; an id that no file can be named after gets a name of its own and stands
in the front matter as ``id``. The body of the file is the content, to the byte.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from treering.core.encoding import encode_json
from treering.core.ids import check_id, file_name
from treering.errors import InvalidInput, MissingExtra
from treering.memory.documents import MAX_DOCUMENT_BYTES, MemoryDocument, checked_metadata

# -----------------------------------------------------------------------------------------------------------
# Markdown with YAML front matter, read without loss and edited without touching what did not change.
#
# A file is a head (the block between two ``---`` lines, with them) and a body, and the two put together are
# the file again, byte for byte. An edit replaces the lines of the keys whose values changed and no others,
# so that comments, key order, quoting and indentation stay as a person wrote them. **Invariant:** what is
# written reads back as what was asked for, and nothing is written where nothing changed.


_HEAD: Final = re.compile(
    r"\ufeff?---[ \t]*\r?\n(?P<yaml>.*?)(?P<end>^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE
)
_OPENED: Final = re.compile(r"\ufeff?---[ \t]*\r?\n")
_ASIDE: Final = re.compile(r"[ \t]*(?:#.*)?\r?\n?")
_WIDE: Final = 1 << 20


class Markdown(msgspec.Struct, frozen=True):
    """A file in its two parts; ``head`` is empty when there is no front matter."""

    head: str
    body: str

    @property
    def text(self) -> str:
        """The file."""
        return self.head + self.body


def split(text: str, where: str) -> Markdown:
    """Cut a file. A block that is opened and never closed is `InvalidInput`: it could mean anything."""
    found = _HEAD.match(text)
    if found is not None:
        return Markdown(text[: found.end()], text[found.end() :])
    opened = _OPENED.match(text)
    if opened is not None and re.match(r"[ \t]*[\w\"'-]+[ \t]*:", text[opened.end() :]):
        raise InvalidInput(f"{where}: the front matter is not closed; end it with a line ---")
    return Markdown("", text)


def metadata_of(parts: Markdown, where: str) -> dict[str, Any]:
    """What the front matter says, as plain values."""
    if not parts.head:
        return {}
    loaded = _load(parts.head, where, kind="safe")
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise InvalidInput(f"{where}: the front matter is a {type(loaded).__name__}; write it as key: value")
    return {str(key): _plain(value) for key, value in cast("dict[Any, Any]", loaded).items()}


def edited(parts: Markdown, metadata: Mapping[str, Any], body: str, where: str) -> Markdown:
    """The file with this metadata and body. Keys come in the order they have, new ones last."""
    before = metadata_of(parts, where)
    wanted = {key: _plain(value) for key, value in metadata.items()}
    if before == wanted:
        return Markdown(parts.head, body) if parts.head or not _looks_opened(body) else _fresh({}, body)
    if not parts.head:
        return _fresh(wanted, body)
    changed = {key: value for key, value in wanted.items() if key not in before or before[key] != value}
    removed = {key for key in before if key not in wanted}
    result = Markdown(_with_lines(parts.head, changed, removed, where), body)
    if _says(result, wanted, where):
        return result
    result = Markdown(_dumped_again(parts.head, changed, removed, where), body)
    if _says(result, wanted, where):
        return result
    raise InvalidInput(
        f"{where}: the front matter cannot be edited without loss (anchors or duplicate keys?); "
        "change it by hand"
    )


def _fresh(metadata: Mapping[str, Any], body: str) -> Markdown:
    lines = "".join(_dumped({key: value}) for key, value in metadata.items())
    return Markdown(f"---\n{lines}---\n", body)


def _says(parts: Markdown, wanted: dict[str, Any], where: str) -> bool:
    try:
        again = split(parts.text, where)
        return again == parts and metadata_of(again, where) == wanted
    except InvalidInput:
        return False


def _with_lines(head: str, changed: Mapping[str, Any], removed: set[str], where: str) -> str:
    """Replace the lines of single keys. Whether that was right is for the caller to check."""
    found = _HEAD.match(head)
    assert found is not None  # noqa: S101 - a head is what the pattern matched
    newline = "\r\n" if "\r\n" in head else "\n"
    lines = found["yaml"].splitlines(keepends=True)
    tree = _load(head, where, kind="rt")
    places = {} if tree is None else {str(key): tree.lc.key(key)[0] for key in tree}
    starts = sorted(places.values())
    for key, start in sorted(places.items(), key=lambda pair: -pair[1]):
        if key not in changed and key not in removed:
            continue
        stop = next((each for each in starts if each > start), len(lines))
        while stop > start + 1 and _ASIDE.fullmatch(lines[stop - 1]):
            stop -= 1  # comments in between belong to what follows
        new = ""
        if key in changed:
            new = _dumped({key: changed[key]})
            comment = _comment_of(tree, key)
            if comment and stop == start + 1 and new.count("\n") == 1:
                new = f"{new.rstrip()}  {comment}\n"
        lines[start:stop] = new.replace("\n", newline).splitlines(keepends=True)
    added = "".join(_dumped({key: value}) for key, value in changed.items() if key not in places)
    if lines and not lines[-1].endswith("\n"):
        lines.append(newline)
    return head[: found.start("yaml")] + "".join(lines) + added.replace("\n", newline) + found["end"]


def _comment_of(tree: Any, key: str) -> str:
    """The comment behind a key's value, on its own line."""
    tokens: Any = tree.ca.items.get(key)
    token: Any = tokens[2] if tokens else None
    return "" if token is None else str(token.value).split("\n", 1)[0].strip()


def _dumped_again(head: str, changed: Mapping[str, Any], removed: set[str], where: str) -> str:
    """Write the whole block anew from its tree: comments and order stay, indentation may not."""
    tree = _load(head, where, kind="rt")
    for key in removed:
        del tree[key]
    for key, value in changed.items():
        tree[key] = value
    found = _HEAD.match(head)
    assert found is not None  # noqa: S101 - a head is what the pattern matched
    return head[: found.start("yaml")] + _dumped(tree) + found["end"]


def _looks_opened(body: str) -> bool:
    return _OPENED.match(body) is not None


def _yaml(kind: str) -> Any:
    try:
        from ruamel.yaml import YAML
    except ImportError:
        raise MissingExtra("Markdown with front matter", "markdown") from None
    yaml = YAML(typ=kind, pure=True)
    yaml.width = _WIDE
    yaml.preserve_quotes = True
    yaml.allow_unicode = True
    yaml.default_flow_style = False
    return yaml


def _load(head: str, where: str, *, kind: str) -> Any:
    from warnings import catch_warnings, simplefilter

    found = _HEAD.match(head)
    assert found is not None  # noqa: S101 - a head is what the pattern matched
    yaml = _yaml(kind)
    try:
        with catch_warnings():
            simplefilter("ignore")  # of odd but readable YAML
            return yaml.load(found["yaml"])
    except Exception as error:  # noqa: BLE001 - its errors have no common class: a bad date is a ValueError
        raise InvalidInput(f"{where}: the front matter is not YAML: {_told(error)}; repair it") from None


def _told(error: Exception) -> str:
    mark: Any = getattr(error, "problem_mark", None)
    problem: Any = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
    return f"line {mark.line + 2}: {problem}" if mark is not None else str(problem)


def _dumped(value: Any) -> str:
    out = io.StringIO()
    _yaml("rt").dump(value, out)
    return out.getvalue()


def _plain(value: Any) -> Any:
    """Values of plain types only, as a store can keep them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, datetime):
        return datetime.combine(value.date(), value.timetz())  # a plain one, not the parser's own
    if isinstance(value, (date, time, bool, bytes)) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


# -----------------------------------------------------------------------------------------------------------

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
        return self.document.content == document.content and _markdown_files_told(
            self.document
        ) == _markdown_files_told(document)


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


def _markdown_files_told(document: MemoryDocument) -> bytes:
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
