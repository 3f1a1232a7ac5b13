"""Anthropic's memory tool on a treering store: what Claude writes is a document with every version.

A file ``/memories/notes.md`` is the document ``memories/notes.md`` of ``store.memory``, so it can be
searched, compared, restored and forgotten like any other. Replies and errors are those of the SDK's own tool
for local files, to the byte; only the size of a folder is always 4K. **Invariant:** a path never leaves
``/memories``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treering.adapters.memory_tree import MemoryTree, Refusal
from treering.adapters.opened import Opened, StoreOrUrl
from treering.errors import MissingExtra, TreeringError

try:
    from anthropic.lib.tools import ToolError
    from anthropic.tools.memory import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "anthropic":
        raise MissingExtra("treering.adapters.anthropic_memory", "anthropic") from error
    raise

if TYPE_CHECKING:
    from collections.abc import Callable

    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )


class TreeringMemoryTool(BetaAbstractMemoryTool):
    """The memory tool: ``client.beta.messages.run_tools(tools=[TreeringMemoryTool(store)], ...)``.

    Takes an open store (sync or async), or a URL or folder, which it then opens and `close` closes.
    ``namespace`` is whose memory it is.
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
        """A file with line numbers, or what is in a folder."""
        return _told(lambda: self._tree.view(command.path, command.view_range))

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """A new file."""
        return _told(lambda: self._tree.create(command.path, command.file_text))

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once."""
        return _told(lambda: self._tree.str_replace(command.path, command.old_str, command.new_str))

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert a text behind a line."""
        return _told(lambda: self._tree.insert(command.path, command.insert_line, command.insert_text))

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file or a folder; its versions stay until they are forgotten."""
        return _told(lambda: self._tree.delete(command.path))

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Move a file or a folder."""
        return _told(lambda: self._tree.rename(command.old_path, command.new_path))

    def clear_all_memory(self) -> str:
        """Delete every file and folder."""
        return _told(self._tree.clear)

    def close(self) -> None:
        """Close the store if it was opened here."""
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
        """A file with line numbers, or what is in a folder."""
        return await self._run(lambda: self._tree.view(command.path, command.view_range))

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """A new file."""
        return await self._run(lambda: self._tree.create(command.path, command.file_text))

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once."""
        return await self._run(lambda: self._tree.str_replace(command.path, command.old_str, command.new_str))

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert a text behind a line."""
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
        """Close the store if it was opened here."""
        await self._opened.aclose()

    async def _run(self, action: Callable[[], str]) -> str:
        return await self._opened.bridge.call(_told, action)


def _memory(opened: Opened, namespace: str) -> Any:
    memory = opened.store.memory
    return memory.in_namespace(namespace) if namespace else memory


def _told(action: Callable[[], str]) -> str:
    """Do it; what the model did wrong is told to the model."""
    try:
        return action()
    except Refusal as error:
        raise ToolError(str(error)) from None
    except TreeringError as error:
        if error.exit_code in {2, 4}:  # its input, or someone else was first
            raise ToolError(str(error)) from error
        raise
