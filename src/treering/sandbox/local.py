"""Sandboxes on this machine: a folder each, with a home that holds nothing but what was put there.

This keeps an agent's files together and apart from the user's. It confines nothing: a program can read and
write whatever its user can, so one that is not trusted needs a container around it as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from treering.core.ids import new_id
from treering.errors import InvalidInput, NotFound
from treering.sandbox.archive import WORKSPACE, Place
from treering.sandbox.profiles import AgentProfile, treering_home

WorkspaceMode = Literal["knowledge", "swe"]

_FOLDERS: Final[dict[str, tuple[str, ...]]] = {
    "knowledge": ("context", "scripts", "temp", "output"),
    "swe": ("repo", "context", "scripts", "temp", "output"),
}
_ID: Final = re.compile(r"sbx_[0-9a-z]{26}")
_RECORD: Final = "sandbox.json"
_OWN: Final = ("TREERING_API_KEY",)


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down beside a sandbox, so that another process can go on with it."""

    id: str
    agent: str
    workspace_mode: str
    workspace: str | None = None


class LocalSandbox:
    """The folder of one sandbox."""

    def __init__(self, record: SandboxRecord) -> None:
        self.record = record
        self.folder = _root() / record.id
        self.home = self.folder / "home"
        self.workspace = self.home / WORKSPACE if record.workspace is None else Path(record.workspace)

    @property
    def id(self) -> str:
        """Its id."""
        return self.record.id

    @property
    def has_own_workspace(self) -> bool:
        """Whether the workspace belongs to the sandbox, and goes with it."""
        return self.record.workspace is None

    def place(self, profile: AgentProfile, exclude: tuple[str, ...], include: tuple[str, ...]) -> Place:
        """What of it is kept."""
        return Place(
            home=self.home.resolve(),
            workspace=self.workspace.resolve(),
            settings=profile.settings,
            exclude=exclude,
            include=include,
        )

    def remove(self) -> None:
        """Take it away; a workspace of the user's stays."""
        shutil.rmtree(self.folder, ignore_errors=True)


def make_sandbox(
    profile: AgentProfile, mode: WorkspaceMode, workspace: Path | None, *, is_empty: bool
) -> LocalSandbox:
    """A new sandbox. With ``is_empty`` its workspace has no folders yet: a checkpoint will bring them."""
    record = SandboxRecord(
        id=f"sbx_{new_id()}",
        agent=profile.name,
        workspace_mode=mode,
        workspace=None if workspace is None else str(workspace),
    )
    made = LocalSandbox(record)
    made.home.mkdir(parents=True, mode=0o700)
    made.folder.chmod(0o700)
    made.workspace.mkdir(parents=True, exist_ok=True)
    for folder in profile.settings:
        (made.home / folder).mkdir(parents=True, exist_ok=True)
    if made.has_own_workspace and not is_empty:
        for name in _FOLDERS[mode]:
            (made.workspace / name).mkdir()
    (made.folder / _RECORD).write_bytes(msgspec.json.encode(record))
    return made


def find_sandbox(sandbox_id: str) -> LocalSandbox:
    """A sandbox that is there, by its id."""
    if _ID.fullmatch(sandbox_id) is None:
        raise InvalidInput(f"{sandbox_id[:80]!r} is not a sandbox's id: those begin with 'sbx_'")
    try:
        record = msgspec.json.decode((_root() / sandbox_id / _RECORD).read_bytes(), type=SandboxRecord)
    except FileNotFoundError:
        raise NotFound(f"there is no sandbox {sandbox_id!r} on this machine; run without session=") from None
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the record of sandbox {sandbox_id!r} cannot be read: {error}") from error
    return LocalSandbox(record)


def environment_of(
    sandbox: LocalSandbox, profile: AgentProfile, given: Mapping[str, str], outer: Mapping[str, str]
) -> dict[str, str]:
    """What a program in the sandbox sees: the user's environment with a home of its own.

    Keys that agents sign in with come along; treering's own key does not.
    """
    home = str(sandbox.home)
    dropped = {*_OWN, *profile.unset}
    made = {name: value for name, value in outer.items() if name not in dropped}
    made |= {
        "HOME": home,
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_STATE_HOME": f"{home}/.local/state",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "PWD": str(sandbox.workspace),
    }
    made |= {name: value.replace("{home}", home) for name, value in profile.environment.items()}
    return {**made, **given}


def resettle(profile: AgentProfile, sandbox: LocalSandbox, before: str | None) -> None:
    """Make an agent at home where its files lie now: sessions are filed under the workspace's path, and
    what holds the old home's path goes.
    """
    home = sandbox.home.resolve()
    if not all((home / each).resolve().is_relative_to(home) for each in profile.settings):
        return  # a link leads out of the sandbox: nothing is touched there
    for pattern in profile.rebuilt:
        for file in sandbox.home.glob(pattern):
            file.unlink()
    if profile.by_path is None or before is None:
        return
    folder = sandbox.home / profile.by_path
    old, new = folder / _slug(before), folder / _slug(str(sandbox.workspace))
    if old != new and old.is_dir() and not new.exists():
        old.rename(new)


def _slug(path: str) -> str:
    return re.sub("[^A-Za-z0-9]", "-", path)


def _root() -> Path:
    return treering_home(os.environ) / "sandboxes"


# -----------------------------------------------------------------------------------------------------------
# Credentials for a sandbox: readable there, not writable, and never on its disk.
#
# A file of the user's home is read into memory that is sealed against writing (Linux ``memfd``), and a link
# in the sandbox's home leads to it. So the agent can sign in, cannot change what the user signs in with,
# and nothing is left when the vault closes. Where there are no sealed files, the link leads to the file
# itself. The links' names are on the list of what is never archived.


_SEALS: Final = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")
_LIMIT: Final = 4 << 20


class Vault:
    """What one sandbox may read of its user's home, for as long as this is open."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._links: list[Path] = []

    def link(self, files: Iterable[str], *, source: Path, home: Path) -> None:
        """Let the sandbox's home have these files of the user's; one that is missing is fine."""
        for name in files:
            real = source / name
            try:
                data = real.read_bytes()
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            if len(data) > _LIMIT:
                raise InvalidInput(f"{real} has {len(data):,} bytes, which is too much for a credential")
            place = home / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.parent.resolve().is_relative_to(home.resolve()):
                continue  # a link leads out of the sandbox: nothing is touched there
            with contextlib.suppress(FileNotFoundError):
                place.unlink()
            place.symlink_to(self._sealed(data) or real)
            self._links.append(place)

    def close(self) -> None:
        """Take the links away and forget what they led to."""
        for place in self._links:
            with contextlib.suppress(OSError):
                if place.is_symlink():
                    place.unlink()
        for held in self._held:
            os.close(held)
        self._links.clear()
        self._held.clear()

    def _sealed(self, data: bytes) -> str | None:
        create = getattr(os, "memfd_create", None)
        if create is None or not all(hasattr(fcntl, each) for each in (*_SEALS, "F_ADD_SEALS")):
            return None
        held: int = create("treering-credential", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._held.append(held)
        while data:
            data = data[os.write(held, data) :]
        seals = 0
        for each in _SEALS:
            seals |= getattr(fcntl, each)
        fcntl.fcntl(held, fcntl.F_ADD_SEALS, seals)
        return f"/proc/{os.getpid()}/fd/{held}"
