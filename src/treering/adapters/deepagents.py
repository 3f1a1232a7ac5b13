"""A file backend for deepagents: `TreeringBackend`, for `create_deep_agent`.

    agent = create_deep_agent(model, backend=TreeringBackend("./work"))

Its tools (``ls read_file write_file edit_file glob grep delete``) work in a virtual root that no path escapes
(see `treering.workspaces.virtual_fs`). Replies and error messages are those of deepagents' own
`FilesystemBackend`, whose helpers are used. Links are not followed, so every file has exactly one path, and
deepagents' permission rules, which go by path, hold. **Invariant:** no tool call raises, and none reveals a
path of the machine.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from treering.core.clock import to_iso
from treering.errors import InvalidInput, MissingExtra, NotFound, ReadOnly, TreeringError
from treering.sync_async import Closing
from treering.workspaces.virtual_fs import MAX_READ_BYTES, MountAccess, VirtualFiles
from treering.workspaces.virtual_fs import FileInfo as WorkspaceFile

try:
    from deepagents.backends.protocol import (
        BackendProtocol,
        ContextLine,
        DeleteResult,
        EditResult,
        FileData,
        FileDownloadResponse,
        FileInfo,
        FileUploadResponse,
        GlobResult,
        GrepMatch,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from deepagents.backends.utils import (
        InvalidGlobPatternError,
        _get_backend_read_file_type,  # pyright: ignore[reportPrivateUsage]
        check_empty_content,
        compile_grep_include_glob,
        perform_string_replacement,
        slice_read_response,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"deepagents", "langchain", "langchain_core", "langgraph"}:
        raise MissingExtra("treering.adapters.deepagents", "deepagents") from error
    raise

_GLOB_SECONDS: Final = 5.0
_GREP_SECONDS: Final = 15.0
_BINARY_BYTES: Final = 64 << 20


class TreeringBackend(BackendProtocol, Closing):
    """The files below ``root`` and in folders that are mounted into it.

    ``mounts={"host/documents": (path, "ro")}`` mounts a folder at that path, read-only or writable
    (``"rw"``). Every method has an async twin, which runs in a thread.
    """

    def __init__(
        self, root: str | Path, *, mounts: Mapping[str, tuple[str | Path, MountAccess]] | None = None
    ) -> None:
        self._files = VirtualFiles(root, mounts=mounts, follow_links=False)

    def close(self) -> None:
        """Close the open folders."""
        self._files.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        self._files.close()

    def ls(self, path: str) -> LsResult:
        """List a folder; the paths of folders end with ``/``."""
        try:
            if self._stat(path).kind != "folder":
                return LsResult(error=f"Path '{path}': not_a_directory", entries=None)
            found = self._files.ls(path)
        except NotFound:
            return LsResult(error=f"Path '{path}': path_not_found", entries=None)
        except TreeringError as error:
            return LsResult(error=f"Cannot list '{path}': {error}", entries=None)
        return LsResult(entries=[_file_info(each) for each in found if each.kind in ("file", "folder")])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a text file, or the whole of any other file as base64."""
        try:
            info = self._stat(file_path)
            if info.kind != "file":
                return ReadResult(error=f"File '{file_path}' not found")
            is_text = _get_backend_read_file_type(file_path) == "text"
            if is_text and info.size > MAX_READ_BYTES:
                return self._read_lines(file_path, max(offset, 0), limit)
            data = self._files.read_bytes(file_path, max_bytes=_BINARY_BYTES)
        except NotFound:
            return ReadResult(error=f"File '{file_path}' not found")
        except TreeringError as error:
            return ReadResult(error=f"Error reading file '{file_path}': {error}")
        text = _text(data) if is_text else None
        if text is None:
            return ReadResult(
                file_data=FileData(content=base64.standard_b64encode(data).decode("ascii"), encoding="base64")
            )
        if (reminder := check_empty_content(text)) is not None:
            return ReadResult(file_data=FileData(content=reminder, encoding="utf-8"))
        return slice_read_response(FileData(content=text, encoding="utf-8"), offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or replace a file atomically."""
        try:
            self._files.write(file_path, content.encode("utf-8"))
        except (TreeringError, UnicodeEncodeError) as error:
            return WriteResult(error=f"Error writing file '{file_path}': {error}")
        return WriteResult(path=file_path)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - deepagents' signature
    ) -> EditResult:
        """Replace text in a file, once or everywhere, whatever its line endings."""
        try:
            if self._stat(file_path).kind != "file":
                return EditResult(error=f"Error: File '{file_path}' not found")
            text = _with_newlines(self._files.read_bytes(file_path).decode("utf-8"))
            done = perform_string_replacement(
                text, _with_newlines(old_string), _with_newlines(new_string), replace_all
            )
            if isinstance(done, str):
                return EditResult(error=done)
            changed, count = done
            self._files.write(file_path, changed.encode("utf-8"))
        except NotFound:
            return EditResult(error=f"Error: File '{file_path}' not found")
        except (TreeringError, UnicodeError) as error:
            return EditResult(error=f"Error editing file '{file_path}': {error}")
        return EditResult(path=file_path, occurrences=count)

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, a link, or a folder with everything in it."""
        try:
            above = file_path.rstrip("/").rpartition("/")[0]
            if self._stat(above).kind != "folder":
                return DeleteResult(error=f"Error: '{file_path}' not found")
            self._files.delete(file_path, recursive=True)
        except NotFound:
            return DeleteResult(error=f"Error: '{file_path}' not found")
        except TreeringError as error:
            return DeleteResult(error=f"Error deleting '{file_path}': {error}")
        return DeleteResult(path=file_path)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        """Find lines that contain a literal text, in all files or those that match a glob.

        ``context_lines`` adds so many lines before and after each match, as deepagents' own backend does.
        """
        _check_context(context_lines)
        wanted = None
        try:
            if glob is not None:
                wanted = compile_grep_include_glob(glob)
        except InvalidGlobPatternError as error:
            return GrepResult(error=str(error), matches=None)
        base, result = path or "/", GrepResult(matches=[])
        assert result.matches is not None  # noqa: S101 - it was just set
        deadline = time.monotonic() + _GREP_SECONDS
        try:
            for relative, info in self._files.each(base):
                if wanted is not None and not wanted(relative):
                    continue
                found: list[GrepMatch] = []
                for line, text in self._files.lines_with(info.path, pattern):
                    if max_count is not None and len(result.matches) + len(found) >= max_count:
                        result.truncated = True
                        break
                    found.append({"path": info.path, "line": line, "text": text})
                if found and context_lines:
                    self._add_context(info.path, found, pattern, context_lines)
                result.matches += found
                result.truncated = result.truncated or time.monotonic() > deadline
                if result.truncated:
                    return result
        except NotFound:
            return GrepResult(matches=[])
        except TreeringError as error:
            return GrepResult(error=f"Error searching '{base}': {error}", matches=result.matches)
        return result

    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> GrepResult:
        """Async twin of `grep`, in a thread."""
        _check_context(context_lines)
        search = partial(self.grep, max_count=max_count, context_lines=context_lines)
        return await asyncio.to_thread(search, pattern, path, glob)

    def _add_context(self, path: str, matches: list[GrepMatch], pattern: str, count: int) -> None:
        """Add the lines around the matches of a file, which are no matches themselves."""
        around = {
            number for each in matches for number in range(each["line"] - count, each["line"] + count + 1)
        }
        lines: dict[int, ContextLine] = {
            number: {"line": number, "text": text}
            for number, text in self._files.numbered_lines(path, until=max(around))
            if number in around and pattern not in text
        }
        for each in matches:
            at = each["line"]
            each["context_before"] = [lines[n] for n in range(at - count, at) if n in lines]
            each["context_after"] = [lines[n] for n in range(at + 1, at + count + 1) if n in lines]

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by their path below ``path``; a pattern without ``/`` matches names at any depth."""
        try:
            wanted = compile_grep_include_glob(pattern)
        except InvalidGlobPatternError as error:
            return GlobResult(error=str(error), matches=None)
        base, found = path or "/", list[FileInfo]()
        deadline = time.monotonic() + _GLOB_SECONDS
        try:
            if self._stat(base).kind != "folder":
                return GlobResult(matches=[])
            for relative, info in self._files.each(base):
                if time.monotonic() > deadline:
                    return GlobResult(matches=_sorted(found), truncated=True, truncation_reason="budget")
                if wanted(relative):
                    found.append(_file_info(info))
        except NotFound:
            return GlobResult(matches=[])
        except TreeringError as error:
            return GlobResult(error=f"Error globbing path '{base}': {error}", matches=_sorted(found))
        return GlobResult(matches=_sorted(found))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write several files, with a result for each."""
        replies: list[FileUploadResponse] = []
        for path, content in files:
            try:
                self._files.write(path, content)
            except TreeringError as error:
                replies.append(FileUploadResponse(path=path, error=_code(error)))
            else:
                replies.append(FileUploadResponse(path=path))
        return replies

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read several files, with a result for each."""
        replies: list[FileDownloadResponse] = []
        for path in paths:
            try:
                if self._stat(path).kind == "folder":
                    replies.append(FileDownloadResponse(path=path, error="is_directory"))
                    continue
                data = self._files.read_bytes(path, max_bytes=_BINARY_BYTES)
            except TreeringError as error:
                replies.append(FileDownloadResponse(path=path, error=_code(error)))
            else:
                replies.append(FileDownloadResponse(path=path, content=data))
        return replies

    def _stat(self, path: str) -> WorkspaceFile:
        """Describe what is at a path. Raises `NotFound` below a file."""
        try:
            return self._files.stat(path)
        except InvalidInput:
            if self._ends_above(path.rstrip("/").rpartition("/")[0]):
                raise NotFound(f"{path!r} not found") from None
            raise

    def _ends_above(self, path: str) -> bool:
        """Whether a path is a file, or below one."""
        try:
            return bool(path) and self._stat(path).kind == "file"
        except NotFound:
            return True
        except TreeringError:
            return False

    def _read_lines(self, path: str, offset: int, limit: int) -> ReadResult:
        """Read lines of a file that is too large to read whole, without counting all of its lines."""
        if limit <= 0:
            return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
        lines = self._files.read(path, offset=offset, limit=limit + 1).splitlines(keepends=True)
        if not lines:
            return ReadResult(error=f"Line offset {offset} exceeds the length of '{path}'")
        shown = lines[:limit]
        end = offset + len(shown)
        return ReadResult(
            file_data=FileData(content="".join(shown), encoding="utf-8"),
            start_line=offset + 1,
            end_line=end,
            next_offset=end if len(lines) > limit else None,
        )


def _check_context(context_lines: int) -> None:
    if context_lines < 0:
        raise InvalidInput(f"context_lines is {context_lines}; use 0 or more")


def _file_info(info: WorkspaceFile) -> FileInfo:
    is_folder = info.kind == "folder"
    return {
        "path": f"{info.path}/" if is_folder else info.path,
        "is_dir": is_folder,
        "size": info.size,
        "modified_at": to_iso(info.modified_at_us),
    }


def _sorted(found: list[FileInfo]) -> list[FileInfo]:
    return sorted(found, key=lambda each: each["path"])


def _text(data: bytes) -> str | None:
    """Decode text, with plain line endings; ``None`` if it is not UTF-8."""
    try:
        return _with_newlines(data.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _code(error: TreeringError) -> str:
    if isinstance(error, NotFound):
        return "file_not_found"
    if isinstance(error, ReadOnly):
        return "permission_denied"
    if isinstance(error, InvalidInput):
        return "invalid_path"
    return str(error)
