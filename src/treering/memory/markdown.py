"""Memory documents as Markdown files with YAML front matter.

``alice/tone`` is stored in ``alice/tone.md``. An id that is not a usable file name gets a generated one, and
is stored in the front matter as ``id``. The body of the file is the content, byte for byte.

A file is split into a head (the front matter with its two ``---`` lines) and a body, which joined are the
file again, byte for byte. An edit replaces only the lines of keys whose values changed, so that comments,
key order, quoting and indentation stay as a person wrote them. **Invariant:** what is written reads back as
requested, and nothing is written when nothing changed.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime, time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from treering.core.clock import Clock, SystemClock, to_datetime
from treering.core.encoding import encode_json
from treering.core.ids import check_id, file_name
from treering.errors import Conflict, InvalidInput, MissingExtra
from treering.files import DRAFTS, FILE_MODE, Drafts, open_folder, translate_os_errors
from treering.memory.documents import (
    MAX_DOCUMENT_BYTES,
    MemoryDocument,
    TagMatch,
    matches_tags,
    parse_document,
    validate_metadata,
    validate_tags,
)

SUFFIX: Final = ".md"

_HEAD: Final = re.compile(
    r"\ufeff?---[ \t]*\r?\n(?P<yaml>.*?)(?P<end>^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE
)
_OPENING: Final = re.compile(r"\ufeff?---[ \t]*\r?\n")
_BLANK_OR_COMMENT: Final = re.compile(r"[ \t]*(?:#.*)?\r?\n?")
_FILE_NAME: Final = re.compile(r"[\w(][\w .,()+@&='!-]*", re.UNICODE)
# Characters that YAML reads as a line break or drops, unless they are escaped.
_NEEDS_ESCAPE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
_MAX_FILE_NAME_BYTES: Final = 200
_MAX_HEAD: Final = 256 * 1024
_MAX_VALUES: Final = 10_000
_MAX_NESTING: Final = 100
_BRACKET: Final = re.compile(r"[\[\]{}]")
_NESTED: Final = re.compile(r"(?:[-?][ \t]+){100}")
_MAX_LINE: Final = 1 << 20
_TIMES: Final = frozenset({"created_at", "updated_at"})
_EMPTY_BY_DEFAULT: Final = frozenset({"tags", "auto_load", "expires_at"})


class MemoryFileWarning(UserWarning):
    """A Markdown file that could not be read as a document was skipped; the message says why."""


class MarkdownFolder:
    """Documents in a folder, one Markdown file each.

    The files are the only storage: a person may edit, add and remove them at any time. Saving changes only
    the lines that it has to. **Invariant:** an edit made between reading and writing a file is never lost;
    the write raises `Conflict` instead.
    """

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        self.root = root.expanduser().absolute()
        self._clock = clock or SystemClock()
        self._drafts = Drafts(self.root, clock=self._clock)
        if self.root.exists() and not self.root.is_dir():
            raise InvalidInput(f"{self.root} is not a folder; pass a folder for the memory files")

    def save(self, document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
        """Write a document to its file, atomically; a file that already says the same is not touched."""
        new = parse_document(document)
        with self.locked():
            file = self._find(new.id)
            if file is not None and file.has_all(new):
                return file.document
            now = to_datetime(self._clock.now_us())
            created = new.created_at or (None if file is None else file.document.created_at) or now
            metadata = new.metadata | {"created_at": created, "updated_at": now}
            stamped = MemoryDocument(id=new.id, content=new.content, metadata=metadata)
            path = document_path(new.id) if file is None else file.path
            self.write(path, render_document(stamped, file, with_times=True).encode(), replacing=file)
            return read_markdown(self.root, path).document

    def get(self, id: str) -> MemoryDocument | None:
        """Return a document; ``None`` if it does not exist or has expired."""
        file = self._find(check_id(id, "memory id"))
        if file is None or file.document.is_expired(to_datetime(self._clock.now_us())):
            return None
        return file.document

    def query(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        filter: Callable[[MemoryDocument], bool] | None = None,
        include_expired: bool = False,
    ) -> list[MemoryDocument]:
        """List documents with any (or all) of the tags, by id."""
        wanted = validate_tags(tags)
        now = to_datetime(self._clock.now_us())
        found = [
            file.document
            for file in self._files()
            if matches_tags(file.document.tags, wanted, match)
            and (include_expired or not file.document.is_expired(now))
            and (filter is None or filter(file.document))
        ]
        return sorted(found, key=lambda document: document.id)

    def delete(self, id: str) -> bool:
        """Remove the file of a document; return whether there was one."""
        check_id(id, "memory id")
        if not self.root.exists():
            return False
        with self.locked():
            file = self._find(id)
            if file is not None:
                self.remove(file)
            return file is not None

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other writers of the folder out, in any process on this machine."""
        with translate_os_errors(str(self.root), writing=True), self._drafts.lock():
            try:
                yield
            finally:
                with suppress(OSError):
                    (self.root / DRAFTS).rmdir()

    def write(self, path: str, data: bytes, *, replacing: MarkdownFile | None = None) -> None:
        """Write a file atomically; raise `Conflict` unless it is still as it was read (or does not exist)."""
        self.check_writable(path, replacing=replacing)
        *folders, name = path.split("/")
        with (
            translate_os_errors(path, writing=True),
            open_folder(self.root, folders, make=True) as folder,
            self._drafts.write([data]) as draft,
        ):
            mode = FILE_MODE
            if replacing is not None:
                self._check_unchanged(replacing)
                mode = os.stat(name, dir_fd=folder).st_mode & 0o777
            draft.publish(folder, name)
            os.chmod(name, mode, dir_fd=folder)

    def check_writable(self, path: str, *, replacing: MarkdownFile | None) -> None:
        """Raise `Conflict` if a new document's file would replace that of another document."""
        if replacing is None and path.endswith(SUFFIX) and (self.root / path).exists():
            raise Conflict(f"{path} already exists and has another id; move it and try again")

    def remove(self, file: MarkdownFile) -> None:
        """Remove a file, and the folders that this leaves empty."""
        self._check_unchanged(file)
        path = self.root / file.path
        path.unlink()
        for parent in path.parents:
            if parent == self.root:
                break
            with suppress(OSError):  # the folder is not empty
                parent.rmdir()

    def _check_unchanged(self, file: MarkdownFile) -> None:
        if sha256((self.root / file.path).read_bytes()).hexdigest() != file.digest:
            raise Conflict(f"{file.path} was edited in the meantime; try again")

    def _find(self, id: str) -> MarkdownFile | None:
        """Return the file of a document, at the path of its id or wherever its front matter names the id."""
        path = document_path(id)
        with suppress(FileNotFoundError, NotADirectoryError):
            if not (self.root / path).is_symlink():
                file = read_markdown(self.root, path)
                if file.id == id:
                    return file
        return next((file for file in self._files() if file.id == id), None)

    def _files(self) -> Iterator[MarkdownFile]:
        for path in markdown_paths(self.root):
            try:
                yield read_markdown(self.root, path)
            except FileNotFoundError:
                continue  # removed in the meantime
            except InvalidInput as error:
                warnings.warn(f"{self.root}: {error}", MemoryFileWarning, stacklevel=4)


class MarkdownFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as read: its path below the root, its two parts, the digest of its bytes, and the document."""

    path: str
    text: Markdown
    digest: str
    document: MemoryDocument

    @property
    def id(self) -> str:
        """The id of the document."""
        return self.document.id

    def matches(self, document: MemoryDocument) -> bool:
        """Whether content and metadata are equal, apart from the times of saving and from empty defaults."""
        return self.document.content == document.content and _comparable_metadata(
            self.document
        ) == _comparable_metadata(document)

    def has_all(self, document: MemoryDocument) -> bool:
        """Whether the file says all that the document says, so that saving it would change nothing."""
        ignored = _TIMES if document.created_at is None else {"updated_at"}
        mine, theirs = (
            encode_json({key: value for key, value in each.metadata.items() if key not in ignored})
            for each in (self.document, document)
        )
        return self.document.content == document.content and mine == theirs


def document_path(id: str) -> str:
    """Return the path of a document's file, relative to the root."""
    segments = id.split("/")
    if all(_is_file_name(segment) for segment in segments):
        return "/".join(segments) + SUFFIX
    return file_name(id) + SUFFIX


def markdown_paths(root: Path) -> Iterator[str]:
    """List the Markdown files below a folder, in order, without hidden files and symbolic links."""
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for name in files:
            path = Path(folder, name)
            if name.endswith(SUFFIX) and not name.startswith(".") and not path.is_symlink():
                found.append(path.relative_to(root).as_posix())
    yield from sorted(found)


def read_markdown(root: Path, path: str) -> MarkdownFile:
    """Read a document from its file; raise `InvalidInput` if it cannot be one."""
    data = (root / path).read_bytes()
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidInput(f"{path} has {len(data):,} bytes, the limit is {MAX_DOCUMENT_BYTES:,}; split it")
    try:
        text = parse_markdown(data.decode(), path)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it"
        ) from None
    metadata = read_front_matter(text, path)
    try:
        document_id = check_id(metadata.pop("id", path.removesuffix(SUFFIX)), "memory id")
        document = MemoryDocument(id=document_id, content=text.body, metadata=validate_metadata(metadata))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return MarkdownFile(path=path, text=text, digest=sha256(data).hexdigest(), document=document)


def render_document(document: MemoryDocument, file: MarkdownFile | None, *, with_times: bool = False) -> str:
    """Return the text of a document's file, as close as possible to the current text.

    Without ``with_times``, what a store adds to every document (the times of saving, no tags, no
    ``auto_load``) is written only if the file has it already. Everything else is written as it is.
    """
    path = document_path(document.id) if file is None else file.path
    before: dict[str, Any] = {} if file is None else read_front_matter(file.text, path)
    parsed = validate_metadata({key: value for key, value in before.items() if key != "id"})
    metadata: dict[str, Any] = {}
    for key, value in document.metadata.items():
        if key in before and encode_json(parsed.get(key)) == encode_json(value):
            metadata[key] = before[key]  # equal values stay as they are written
        elif with_times or key in before or not (key in _TIMES or (key in _EMPTY_BY_DEFAULT and not value)):
            metadata[key] = value
    if path.removesuffix(SUFFIX) != document.id or "id" in before:
        metadata["id"] = document.id
    text = Markdown("", document.content) if file is None else file.text
    return edit_markdown(text, metadata, document.content, path).text


class Markdown(msgspec.Struct, frozen=True):
    """The two parts of a file; ``head`` is empty if there is no front matter."""

    head: str
    body: str

    @property
    def text(self) -> str:
        """The whole file."""
        return self.head + self.body


def parse_markdown(text: str, path: str) -> Markdown:
    """Split a file. Front matter that is opened but never closed is ambiguous, hence `InvalidInput`."""
    head = _HEAD.match(text)
    if head is not None:
        return Markdown(text[: head.end()], text[head.end() :])
    opening = _OPENING.match(text)
    if opening is not None and re.match(r"[ \t]*[\w\"'-]+[ \t]*:", text[opening.end() :]):
        raise InvalidInput(f"{path}: the front matter is not closed; end it with a line ---")
    return Markdown("", text)


def read_front_matter(text: Markdown, path: str) -> dict[str, Any]:
    """Return the front matter as plain values."""
    if not text.head:
        return {}
    loaded = _load_yaml(text.head, path, kind="safe")
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise InvalidInput(f"{path}: the front matter is a {type(loaded).__name__}; write it as key: value")
    return {str(key): _plain(value) for key, value in cast("dict[Any, Any]", loaded).items()}


def edit_markdown(text: Markdown, metadata: Mapping[str, Any], body: str, path: str) -> Markdown:
    """Return the file with this metadata and body. Existing keys keep their order, new ones are appended."""
    before = read_front_matter(text, path)
    wanted = {key: _plain(value) for key, value in metadata.items()}
    if before == wanted:
        needs_head = not text.head and _OPENING.match(body) is not None
        return _with_new_head({}, body) if needs_head else Markdown(text.head, body)
    if not text.head:
        return _with_new_head(wanted, body)
    changed = {key: value for key, value in wanted.items() if key not in before or before[key] != value}
    removed = {key for key in before if key not in wanted}
    for edit in (_replace_lines, _rewrite_head):
        result = Markdown(edit(text.head, changed, removed, path), body)
        if _reads_back(result, wanted, path):
            return result
    raise InvalidInput(
        f"{path}: the front matter cannot be edited without loss (anchors or duplicate keys?); "
        "edit it by hand"
    )


def _with_new_head(metadata: Mapping[str, Any], body: str) -> Markdown:
    lines = "".join(_dump_yaml(_quoted({key: value})) for key, value in metadata.items())
    return Markdown(f"---\n{lines}---\n", body)


def _reads_back(text: Markdown, wanted: dict[str, Any], path: str) -> bool:
    try:
        parsed = parse_markdown(text.text, path)
        return parsed == text and read_front_matter(parsed, path) == wanted
    except InvalidInput:
        return False


def _replace_lines(head: str, changed: Mapping[str, Any], removed: set[str], path: str) -> str:
    """Replace the lines of single keys; the caller checks the result."""
    match = _match_head(head)
    newline = "\r\n" if "\r\n" in head else "\n"
    lines = match["yaml"].splitlines(keepends=True)
    tree = _load_yaml(head, path, kind="rt")
    line_numbers = {} if tree is None else {str(key): tree.lc.key(key)[0] for key in tree}
    starts = sorted(line_numbers.values())
    for key, start in sorted(line_numbers.items(), key=lambda pair: -pair[1]):
        if key not in changed and key not in removed:
            continue
        stop = next((each for each in starts if each > start), len(lines))
        while stop > start + 1 and _BLANK_OR_COMMENT.fullmatch(lines[stop - 1]):
            stop -= 1  # comments in between belong to the next key
        new = ""
        if key in changed:
            new = _dump_yaml(_quoted({key: changed[key]}))
            comment = _trailing_comment(tree, key)
            if comment and stop == start + 1 and new.count("\n") == 1:
                new = f"{new.rstrip()}  {comment}\n"
        lines[start:stop] = new.replace("\n", newline).splitlines(keepends=True)
    added = "".join(
        _dump_yaml(_quoted({key: value})) for key, value in changed.items() if key not in line_numbers
    )
    if lines and not lines[-1].endswith("\n"):
        lines.append(newline)
    return head[: match.start("yaml")] + "".join(lines) + added.replace("\n", newline) + match["end"]


def _trailing_comment(tree: Any, key: str) -> str:
    """Return the comment on the line of a key."""
    tokens: Any = tree.ca.items.get(key)
    token: Any = tokens[2] if tokens else None
    return "" if token is None else str(token.value).split("\n", 1)[0].strip()


def _rewrite_head(head: str, changed: Mapping[str, Any], removed: set[str], path: str) -> str:
    """Write the whole front matter again: comments and order are kept, indentation may change."""
    tree = _load_yaml(head, path, kind="rt")
    for key in removed:
        del tree[key]
    for key, value in changed.items():
        tree[key] = _quoted(value)
    match = _match_head(head)
    return head[: match.start("yaml")] + _dump_yaml(tree) + match["end"]


def _match_head(head: str) -> re.Match[str]:
    match = _HEAD.match(head)
    assert match is not None  # noqa: S101 - a head is what the pattern matched
    return match


def _yaml(kind: str) -> Any:
    try:
        from ruamel.yaml import YAML
    except ImportError:
        raise MissingExtra("Markdown with front matter", "markdown") from None
    yaml = YAML(typ=kind, pure=True)
    yaml.width = _MAX_LINE
    yaml.preserve_quotes = True
    yaml.allow_unicode = True
    yaml.default_flow_style = False
    return yaml


def _load_yaml(head: str, path: str, *, kind: str) -> Any:
    yaml = _yaml(kind)
    source = _match_head(head)["yaml"]
    if len(source) > _MAX_HEAD:
        raise InvalidInput(f"{path}: the front matter is longer than {_MAX_HEAD:,} characters; shorten it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual but readable YAML
            _check_size(yaml, source)
            return yaml.load(source)
    except Exception as error:  # noqa: BLE001 - its errors share no class: an invalid date is a ValueError
        mark: Any = getattr(error, "problem_mark", None)
        problem: Any = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
        where = "" if mark is None else f"line {mark.line + 2}: "
        raise InvalidInput(f"{path}: the front matter is not valid YAML: {where}{problem}") from None


def _check_size(yaml: Any, source: str) -> None:
    """Raise `ValueError` if YAML is nested deeper, or expands to more values, than a person would write.

    An alias stands for all that its anchor holds, so a few lines of aliases to aliases are billions of
    values. Nesting takes the parser time that grows with its square.
    """
    depth = 0
    for bracket in _BRACKET.findall(source):
        depth = max(0, depth + (1 if bracket in "[{" else -1))
        if depth > _MAX_NESTING:
            break
    if depth > _MAX_NESTING or _NESTED.search(source):
        raise ValueError(f"it is nested deeper than {_MAX_NESTING} levels")
    if "*" not in source and len(source) <= _MAX_VALUES:
        return
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(source):
        kind = type(event).__name__
        if kind == "AliasEvent":
            total += sizes.get(event.anchor, _MAX_VALUES + 1)  # not closed yet: it would contain itself
        elif kind == "ScalarEvent":
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif kind in {"SequenceStartEvent", "MappingStartEvent"}:
            opened.append((event.anchor, total))
            total += 1
            sizes.pop(event.anchor, None)
        elif kind in {"SequenceEndEvent", "MappingEndEvent"}:
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        if total > _MAX_VALUES:
            raise ValueError(f"its aliases expand to more than {_MAX_VALUES:,} values, or to themselves")


def _dump_yaml(value: Any) -> str:
    out = io.StringIO()
    _yaml("rt").dump(value, out)
    return out.getvalue()


def _quoted(value: Any) -> Any:
    """Mark strings that only a double-quoted scalar with escapes can represent."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_quoted(key): _quoted(each) for key, each in items}
    if isinstance(value, list):
        return [_quoted(each) for each in cast("list[Any]", value)]
    needs_escape = isinstance(value, str) and _NEEDS_ESCAPE.search(value)
    return DoubleQuotedScalarString(value) if needs_escape else value


def _plain(value: Any) -> Any:
    """Convert the parser's own types to plain ones, which a store can encode."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, datetime):
        return datetime.combine(value.date(), value.timetz())
    if isinstance(value, (date, time, bool, bytes)) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def _comparable_metadata(document: MemoryDocument) -> bytes:
    """Encode the metadata without times and defaults."""
    metadata = {
        key: value
        for key, value in document.metadata.items()
        if key not in _TIMES and not (key in _EMPTY_BY_DEFAULT and not value)
    }
    return encode_json(metadata)


def _is_file_name(segment: str) -> bool:
    return (
        _FILE_NAME.fullmatch(segment) is not None
        and segment[-1] not in " ."
        and len(segment.encode()) + len(SUFFIX) <= _MAX_FILE_NAME_BYTES
    )
