"""Anthropic's memory tool on a treering store: files that Claude writes are versioned documents.

A file ``/memories/notes.md`` is the document ``memories/notes.md`` of ``store.memory``, so it can be
searched, compared, restored and forgotten like any other. Replies and errors are byte for byte those of the
SDK's own tool for local files, except that the size of a folder is always 4K. A folder exists because it
has files; one that became empty is represented by a document whose id ends with ``/``. Moving and deleting
a folder goes file by file: a process that dies meanwhile leaves some files in both places or not moved, and
loses none. **Invariant:** a path never leaves ``/memories``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from treering.adapters.shared import Opened, StoreOrUrl
from treering.errors import InvalidInput, MissingExtra, TreeringError
from treering.memory.documents import MemoryDocument
from treering.memory.memory import Memory

if TYPE_CHECKING:
    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )

try:
    from anthropic.lib.tools import ToolError
    from anthropic.tools.memory import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "anthropic":
        raise MissingExtra("treering.adapters.claude", "anthropic") from error
    raise


ROOT: Final = "memories"

_MAX_LINES: Final = 999_999
_WIDTH: Final = 6
_FOLDER_BYTES: Final = 4096
_PAIR: Final = 2
_DEPTH: Final = 2
_UNSAFE: Final = re.compile(r"[%\x00-\x1f\x7f-\x9f]")
_ESCAPED: Final = re.compile(r"%([0-9a-f]{2})")


class Refusal(Exception):
    """The model's request cannot be carried out; the message is the reply."""


class MemoryTree:
    """The files of one memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def view(self, path: str, view_range: Sequence[int] | None) -> str:
        """Show a file with line numbers, or a folder two levels deep."""
        place = _place(path)
        document = self._file(place)
        if document is None:
            if not self._is_folder(place):
                raise Refusal(f"The path {path} does not exist. Please provide a valid path.")
            return self._view_folder(path, place)
        lines = document.content.split("\n")
        if len(lines) > _MAX_LINES:
            raise Refusal(f"File {path} exceeds maximum line limit of 999,999 lines.")
        first = 0
        if view_range and len(view_range) == _PAIR:
            first = max(1, view_range[0]) - 1
            lines = lines[first : len(lines) if view_range[1] == -1 else view_range[1]]
        numbered = [_numbered(at + first + 1, line) for at, line in enumerate(lines)]
        return f"Here's the content of {path} with line numbers:\n" + "\n".join(numbered)

    def create(self, path: str, text: str) -> str:
        """Create a file."""
        place = _place(path)
        self._check_parents(place)
        if self._exists(place):
            raise Refusal(f"File {path} already exists")
        self._memory.save(place, text, if_version=0)
        return f"File created successfully at: {path}"

    def str_replace(self, path: str, old: str, new: str) -> str:
        """Replace text that occurs once."""
        place = self._existing_file(path)
        reply = ""

        def replaced(content: str) -> str:
            nonlocal reply
            after, reply = _replaced(content, old, new, path)
            return after

        self._update(place, path, replaced)
        return reply

    def insert(self, path: str, line: int, text: str) -> str:
        """Insert text after a line."""
        place = self._existing_file(path)

        def inserted(content: str) -> str:
            lines = content.split("\n")
            if lines[-1] == "":
                lines.pop()
            if line < 0 or line > len(lines):
                raise Refusal(
                    f"Invalid `insert_line` parameter: {line}. "
                    f"It should be within the range [0, {len(lines)}]."
                )
            lines.insert(line, text.rstrip("\n"))
            after = "\n".join(lines)
            return after if after.endswith("\n") else after + "\n"

        self._update(place, path, inserted)
        return f"The file {path} has been edited."

    def delete(self, path: str) -> str:
        """Delete a file, or a folder with everything in it."""
        place = _place(path)
        if place == ROOT:
            raise Refusal("Cannot delete the /memories directory itself")
        if not self._exists(place):
            raise Refusal(f"The path {path} does not exist")
        self._keep_folder(posixpath.dirname(place))
        for document in self._at_or_below(place):
            self._memory.delete(document.id)
        return f"Successfully deleted {path}"

    def rename(self, old_path: str, new_path: str) -> str:
        """Move a file or a folder."""
        old, new = _place(old_path), _place(new_path)
        if old == ROOT:
            raise Refusal("Cannot rename the /memories directory itself")
        if self._exists(new):
            raise Refusal(f"The destination {new_path} already exists")
        folder = posixpath.dirname(new)
        if not self._exists(old):
            if self._file(folder) is None:  # as a file system would, which creates the parent folders first
                self._check_parents(new)
                self._keep_folder(folder)
            raise Refusal(f"The path {old_path} does not exist")
        self._check_parents(new)
        if new.startswith(old + "/"):
            raise Refusal(f"Cannot move {old_path} into itself")
        self._keep_folder(posixpath.dirname(old))
        for document in self._at_or_below(old):
            moved = MemoryDocument(
                id=new + document.id[len(old) :], content=document.content, metadata=document.metadata
            )
            self._memory.save(moved, if_version=0)
            self._memory.delete(document.id, if_version=document.version)
        return f"Successfully renamed {old_path} to {new_path}"

    def clear(self) -> str:
        """Delete everything."""
        for document in self._memory.query(prefix=f"{ROOT}/", include_expired=True):
            self._memory.delete(document.id)
        return "All memory cleared"

    def _view_folder(self, path: str, place: str) -> str:
        sizes: dict[tuple[str, ...], int | None] = {}
        for document in self._memory.query(prefix=place + "/"):
            *folders, name = document.id[len(place) + 1 :].split("/")
            for depth in range(1, len(folders) + 1):
                sizes[tuple(folders[:depth])] = None
            if name:
                sizes[(*folders, name)] = len(document.content.encode())
        lines = [f"{_size(_FOLDER_BYTES)}\t{path}"]
        shown = {tuple(map(_unquote, parts)): size for parts, size in sizes.items() if len(parts) <= _DEPTH}
        for parts in sorted(shown):
            if any(part.startswith(".") for part in parts):
                continue
            size = shown[parts]
            name = "/".join(parts)
            lines.append(
                f"{_size(_FOLDER_BYTES)}\t{path}/{name}/" if size is None else f"{_size(size)}\t{path}/{name}"
            )
        header = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        return "\n".join([header, *lines])

    def _update(self, place: str, path: str, function: Callable[[str], str]) -> None:
        def changed(content: str | None) -> str:
            if content is None:
                raise Refusal(
                    f"The file {path} no longer exists (may have been deleted or renamed concurrently)."
                )
            return function(content)

        self._memory.update(place, changed, default=None)  # pyright: ignore[reportArgumentType]

    def _existing_file(self, path: str) -> str:
        place = _place(path)
        if self._file(place) is None:
            if self._is_folder(place):
                raise Refusal(f"The path {path} is not a file.")
            raise Refusal(f"The path {path} does not exist. Please provide a valid path.")
        return place

    def _keep_folder(self, place: str) -> None:
        if place != ROOT:
            self._memory.save(place + "/", "", metadata={"folder": True})

    def _check_parents(self, place: str) -> None:
        parent = posixpath.dirname(place)
        while parent and parent != ROOT:
            if self._file(parent) is not None:
                raise Refusal(f"The path /{_unquote(parent)} is not a directory.")
            parent = posixpath.dirname(parent)

    def _exists(self, place: str) -> bool:
        return self._file(place) is not None or self._is_folder(place)

    def _file(self, place: str) -> MemoryDocument | None:
        return None if place == ROOT else self._memory.get(place)

    def _is_folder(self, place: str) -> bool:
        return place == ROOT or bool(self._memory.query(prefix=place + "/", limit=1))

    def _at_or_below(self, place: str) -> list[MemoryDocument]:
        document = self._file(place)
        below = self._memory.query(prefix=place + "/")
        return below if document is None else [document, *below]


def _place(path: str) -> str:
    """Return the id of the document at a path; refuse a path that leaves the root."""
    if not path.startswith("/memories"):
        raise Refusal(f"Path must start with /memories, got: {path}")
    parts: list[str] = []
    for part in path[len("/memories") :].split("/"):
        if part in {"", "."}:
            continue
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise Refusal(f"Path {path} would escape /memories directory")
    if "\x00" in path:
        raise InvalidInput(f"the path {path!r} contains a NUL; leave it out")
    return "/".join([ROOT, *(_UNSAFE.sub(lambda found: f"%{ord(found[0]):02x}", part) for part in parts)])


def _replaced(content: str, old: str, new: str, path: str) -> tuple[str, str]:
    """Return the content after the replacement, and the reply that shows it."""
    count = content.count(old)
    if count == 0:
        raise Refusal(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    if count > 1:
        lines: list[str] = []
        at = content.find(old)
        while at != -1:
            lines.append(str(content[:at].count("\n") + 1))
            at = content.find(old, at + 1)
        raise Refusal(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` "
            f"in lines: {', '.join(lines)}. Please ensure it is unique"
        )
    changed_line = content[: content.find(old)].count("\n")
    after = content.replace(old, new)
    new_lines = after.split("\n")
    shown = range(max(0, changed_line - 2), min(len(new_lines), changed_line + 3))
    snippet = "\n".join(_numbered(at + 1, new_lines[at]) for at in shown)
    return after, (
        "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
        + snippet
    )


def _numbered(number: int, line: str) -> str:
    return f"{str(number).rjust(_WIDTH)}\t{line}"


def _size(count: int) -> str:
    """Format a size as the SDK's tool does."""
    if count == 0:
        return "0B"
    step = min((count.bit_length() - 1) // 10, 3)
    size = count / 1024**step
    return f"{int(size) if size == int(size) else f'{size:.1f}'}{'BKMG'[step]}"


def _unquote(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


class TreeringMemoryTool(BetaAbstractMemoryTool):
    """The memory tool: ``client.beta.messages.run_tools(tools=[TreeringMemoryTool(store)], ...)``.

    Takes an open store (sync or async), or a URL or folder, which it then opens and `close` closes.
    ``namespace`` is the owner of the memory.
    """

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        namespace: str = "",
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._opened = Opened(store)
        self._tree = MemoryTree(_memory(self._opened, namespace))

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Show a file with line numbers, or the content of a folder."""
        return _reply_to(lambda: self._tree.view(command.path, command.view_range))

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Create a file."""
        return _reply_to(lambda: self._tree.create(command.path, command.file_text))

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace text that occurs once."""
        return _reply_to(lambda: self._tree.str_replace(command.path, command.old_str, command.new_str))

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert text after a line."""
        return _reply_to(lambda: self._tree.insert(command.path, command.insert_line, command.insert_text))

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file or a folder; its versions stay until they are forgotten."""
        return _reply_to(lambda: self._tree.delete(command.path))

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Move a file or a folder."""
        return _reply_to(lambda: self._tree.rename(command.old_path, command.new_path))

    def clear_all_memory(self) -> str:
        """Delete every file and folder."""
        return _reply_to(self._tree.clear)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._opened.close()


class AsyncTreeringMemoryTool(BetaAsyncAbstractMemoryTool):
    """`TreeringMemoryTool` for the async client."""

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        namespace: str = "",
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._opened = Opened(store)
        self._tree = MemoryTree(_memory(self._opened, namespace))

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Show a file with line numbers, or the content of a folder."""
        return await self._run(lambda: self._tree.view(command.path, command.view_range))

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Create a file."""
        return await self._run(lambda: self._tree.create(command.path, command.file_text))

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace text that occurs once."""
        return await self._run(lambda: self._tree.str_replace(command.path, command.old_str, command.new_str))

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert text after a line."""
        return await self._run(
            lambda: self._tree.insert(command.path, command.insert_line, command.insert_text)
        )

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file or a folder; its versions stay until they are forgotten."""
        return await self._run(lambda: self._tree.delete(command.path))

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Move a file or a folder."""
        return await self._run(lambda: self._tree.rename(command.old_path, command.new_path))

    async def clear_all_memory(self) -> str:
        """Delete every file and folder."""
        return await self._run(self._tree.clear)

    async def aclose(self) -> None:
        """Close the store, if it was opened here."""
        await self._opened.aclose()

    async def _run(self, action: Callable[[], str]) -> str:
        return await self._opened.bridge.call(_reply_to, action)


def _memory(opened: Opened, namespace: str) -> Any:
    memory = opened.store.memory
    return memory.in_namespace(namespace) if namespace else memory


def _reply_to(action: Callable[[], str]) -> str:
    """Return the reply to a command; errors of the model become the tool's reply."""
    try:
        return action()
    except Refusal as error:
        raise ToolError(str(error)) from None
    except TreeringError as error:
        if error.exit_code in {2, 4}:  # invalid input, or another writer was first
            raise ToolError(str(error)) from error
        raise
