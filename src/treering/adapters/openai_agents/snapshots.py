"""Files of the OpenAI Agents SDK's sandboxes as checkpoints of a store.

    SandboxRunConfig(client=client, snapshot=TreeringSnapshotSpec(url="./agents"))

The SDK persists the workspace of a sandbox as a tar archive, and restores it when a session is resumed.
`TreeringSnapshot` keeps its files as a snapshot (`treering.workspaces`): content is stored once, however
often and in however many sessions it is persisted. Each time is a checkpoint of the thread ``sandbox/<id>``,
so earlier ones can be listed, compared and rewound to. **Invariant:** nothing of an archive is written
outside the folder that it is unpacked in.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final, Literal

from treering.adapters.shared import thread_name
from treering.api import open as open_store
from treering.errors import MissingExtra
from treering.store import Store
from treering.threads.thread import Thread

try:
    from agents.sandbox.errors import (
        SnapshotNotRestorableError,
        SnapshotPersistError,
        SnapshotRestoreError,
    )
    from agents.sandbox.session.dependencies import Dependencies
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"agents", "openai"}:
        raise MissingExtra("treering.adapters.openai_agents", "openai-agents") from error
    raise

_IN_MEMORY: Final = 8 << 20


class TreeringSnapshot(SnapshotBase):
    """The files of one sandbox session, in the store at ``url`` (the default store without it).

    Everything is kept but what no snapshot holds: sockets, devices, and files with credentials
    (`treering.workspaces.ignore`).
    """

    type: Literal["treering"] = "treering"  # pyright: ignore[reportIncompatibleVariableOverride] - as the SDK
    url: str | None = None
    namespace: str = ""

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        """Save an archive's files as a checkpoint."""
        del dependencies
        try:
            await asyncio.to_thread(self._persist, data)
        except Exception as error:
            raise SnapshotPersistError(snapshot_id=self.id, path=self._path(), cause=error) from error

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        """Return the files of the newest checkpoint as an archive."""
        if not await self.restorable(dependencies=dependencies):
            raise SnapshotNotRestorableError(snapshot_id=self.id, path=self._path())
        try:
            return await asyncio.to_thread(self._restore)
        except Exception as error:
            raise SnapshotRestoreError(snapshot_id=self.id, path=self._path(), cause=error) from error

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        """Whether files were persisted."""
        del dependencies
        return await asyncio.to_thread(self._is_there)

    def _path(self) -> Path:
        return Path(f"<treering:{self.thread_id}>")

    @property
    def thread_id(self) -> str:
        """The thread whose checkpoints hold the files."""
        return thread_name(f"sandbox/{self.id}", "snapshot id")

    def _thread(self, store: Store) -> Thread:
        return store.thread(self.thread_id, self.namespace)

    def _persist(self, data: io.IOBase) -> None:
        with open_store(self.url) as store, tempfile.TemporaryDirectory() as folder:
            unpack(data, Path(folder))
            self._thread(store).checkpoint(workspace=folder, include=["*"], note="persisted by the sandbox")

    def _restore(self) -> io.IOBase:
        with open_store(self.url) as store, tempfile.TemporaryDirectory() as folder:
            head = self._thread(store).load()
            head.restore(folder, keep_before=False)
            archive = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the SDK closes it
            with tarfile.open(fileobj=archive, mode="w") as packed:
                for each in sorted(Path(folder).iterdir()):
                    packed.add(each, arcname=f"./{each.name}")
            archive.seek(0)
            return archive  # pyright: ignore[reportReturnType] - a file in all but its class

    def _is_there(self) -> bool:
        with open_store(self.url) as store:
            head = self._thread(store).head
            return head is not None and head.snapshot is not None


class TreeringSnapshotSpec(SnapshotSpec):
    """Asks for a `TreeringSnapshot` for each sandbox session."""

    type: Literal["treering"] = "treering"  # pyright: ignore[reportIncompatibleVariableOverride] - as the SDK
    url: str | None = None
    namespace: str = ""

    def build(self, snapshot_id: str) -> SnapshotBase:
        """Return the snapshot of a session."""
        return TreeringSnapshot(id=snapshot_id, url=self.url, namespace=self.namespace)


def unpack(data: io.IOBase, folder: Path) -> None:
    """Unpack an archive that nobody vouches for: no member leaves the folder, not through a link either."""
    links: list[tarfile.TarInfo] = []
    with tarfile.open(fileobj=data, mode="r|*") as packed:  # pyright: ignore[reportArgumentType, reportCallIssue]
        for member in packed:
            if member.issym():  # as the last ones, so that nothing is written through them
                links.append(member)
            elif member.isfile() or member.isdir() or member.islnk():
                packed.extract(member, folder, filter="data")
    for link in links:
        place = folder / link.name
        if not place.parent.resolve().is_relative_to(folder.resolve()) or ".." in Path(link.name).parts:
            raise ValueError(f"the archive's member {link.name!r} is outside of it")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(link.linkname)
