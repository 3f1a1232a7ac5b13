"""Sandboxes on this machine: a folder each, with a home that starts empty.

This keeps an agent's files together and apart from the user's. It does not confine programs: they can read
and write whatever their user can, so an untrusted one needs a container as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from treering.core.ids import new_id
from treering.errors import InvalidInput, NotFound
from treering.files import make_folder
from treering.sandbox.archive import WORKSPACE
from treering.sandbox.profiles import COMMON_VARIABLES, AgentProfile, treering_home
from treering.sandbox.providers import LOCAL, Output, RunningProgram, SandboxPlace, WorkspaceMode
from treering.sandbox.run import Program, kill_leftovers

_FOLDERS: Final[dict[str, tuple[str, ...]]] = {
    "knowledge": ("context", "scripts", "temp", "output"),
    "swe": ("repo", "context", "scripts", "temp", "output"),
}
_ID: Final = re.compile(r"sbx_[0-9a-z]{26}")
_RECORD: Final = "sandbox.json"
_DRAFT: Final = "sandbox.json.new"
_DAY_SECONDS: Final = 86_400
_SEALS: Final = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")
_MAX_CREDENTIAL: Final = 4 << 20
_TREERING_VARIABLES: Final = ("TREERING_API_KEY",)


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The file beside a sandbox that lets another process continue with it."""

    id: str
    agent: str
    workspace_mode: str
    workspace: str | None = None
    provider: str = LOCAL


class LocalSandbox:
    """The folder of one sandbox."""

    def __init__(self, record: SandboxRecord) -> None:
        self.record = record
        self.folder = _root() / record.id
        self.home = self.folder / "home"
        self.workspace = self.home / WORKSPACE if record.workspace is None else Path(record.workspace)

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self.record.id

    @property
    def agent(self) -> str:
        """The name of the profile that it was made for."""
        return self.record.agent

    @property
    def workspace_path(self) -> str:
        """Where programs see the workspace: where it is."""
        return str(self.workspace)

    @property
    def is_local(self) -> bool:
        """Programs read the home itself."""
        return True

    @property
    def has_own_workspace(self) -> bool:
        """Whether the workspace belongs to the sandbox, and is removed with it."""
        return self.record.workspace is None

    def start(
        self,
        command: Sequence[str],
        *,
        profile: AgentProfile,
        env: Mapping[str, str],
        pass_env: Sequence[str],
        listener: Output,
    ) -> RunningProgram:
        """Start a program in the workspace, in a process group of its own."""
        environment = environment_of(self, profile, env, os.environ, passed=pass_env)
        return Program(command, folder=self.workspace, environment=environment, listener=listener)

    def pull(self) -> None:
        """Do nothing: programs work on these files."""

    def push(self) -> None:
        """Do nothing: programs work on these files."""

    def publish(self) -> None:
        """Complete a sandbox that was made ``empty``: from now on it can be found by its id."""
        (self.folder / _DRAFT).rename(self.folder / _RECORD)

    def remove(self) -> None:
        """End what programs have left behind, and remove the sandbox; a workspace of the user's stays."""
        kill_leftovers(self.home)
        shutil.rmtree(self.folder, ignore_errors=True)


class LocalProvider:
    """Sandboxes on this machine. A subclass may have its own ``name`` and class of sandboxes."""

    name: str = LOCAL
    sandbox: type[LocalSandbox] = LocalSandbox

    def create(
        self, profile: AgentProfile, mode: WorkspaceMode, workspace: Path | None, *, empty: bool = False
    ) -> LocalSandbox:
        """Create a sandbox. Those that a dead process never published are removed after a day."""
        _remove_unpublished()
        record = SandboxRecord(
            id=f"sbx_{new_id()}",
            agent=profile.name,
            workspace_mode=mode,
            workspace=None if workspace is None else str(workspace),
            provider=self.name,
        )
        made = self.sandbox(record)
        make_folder(made.home)
        made.workspace.mkdir(parents=True, exist_ok=True)
        for folder in profile.settings:
            (made.home / folder).mkdir(parents=True, exist_ok=True)
        (made.folder / _DRAFT).write_bytes(msgspec.json.encode(record))
        if not empty:
            for name in _FOLDERS[mode] if made.has_own_workspace else ():
                (made.workspace / name).mkdir()
            made.publish()
        return made

    def find(self, sandbox_id: str) -> LocalSandbox:
        """Return an existing sandbox by its id."""
        if _ID.fullmatch(sandbox_id) is None:
            raise InvalidInput(f"{sandbox_id[:80]!r} is not a sandbox id: ids start with 'sbx_'")
        try:
            record = msgspec.json.decode((_root() / sandbox_id / _RECORD).read_bytes(), type=SandboxRecord)
        except FileNotFoundError:
            raise NotFound(
                f"sandbox {sandbox_id!r} not found on this machine; run without session="
            ) from None
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"the record of sandbox {sandbox_id!r} cannot be read: {error}") from error
        if record.provider != self.name:
            raise InvalidInput(
                f"sandbox {sandbox_id} was made by provider {record.provider!r}, not by {self.name!r}; pass "
                f"provider={record.provider!r}"
            )
        return self.sandbox(record)


def _remove_unpublished() -> None:
    for folder in _root().glob("sbx_*"):
        with contextlib.suppress(OSError):
            if not (folder / _RECORD).exists() and folder.stat().st_mtime < time.time() - _DAY_SECONDS:
                shutil.rmtree(folder)


def environment_of(
    sandbox: LocalSandbox,
    profile: AgentProfile,
    given: Mapping[str, str],
    outer: Mapping[str, str],
    *,
    passed: Iterable[str] = (),
) -> dict[str, str]:
    """Return the environment of programs in the sandbox.

    Of the user's it has what programs need to run (`COMMON_VARIABLES`), what the profile lists, which is how
    the agent signs in, and what the caller lists in ``passed``; never treering's own key. All three are names
    or patterns.
    """
    home = str(sandbox.home)
    dropped = {*_TREERING_VARIABLES, *profile.unset}
    wanted = matcher((*COMMON_VARIABLES, *profile.variables, *passed))
    made = {name: value for name, value in outer.items() if name not in dropped and wanted(name)}
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


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says whether a name of a variable matches one of these names and patterns."""
    whole = re.compile("|".join(fnmatch.translate(each) for each in patterns))
    return lambda name: whole.match(name) is not None


def relocate_sessions(profile: AgentProfile, sandbox: SandboxPlace, before: str | None) -> None:
    """Adapt an agent's settings to the path of their new home.

    Session folders that are named after the path of the workspace are renamed, and files that contain the
    path of the old home are deleted.
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
    old, new = folder / _slug(before), folder / _slug(sandbox.workspace_path)
    if old != new and old.is_dir() and not new.exists():
        old.rename(new)


def _slug(path: str) -> str:
    return re.sub("[^A-Za-z0-9]", "-", path)


def _root() -> Path:
    return treering_home(os.environ) / "sandboxes"


class CredentialLinks:
    """Credentials of the user that a sandbox can read, not write, and that are never on its disk.

    Each file is read into memory that is sealed against writing (Linux ``memfd``), and a link in the
    sandbox's home points to it. So the agent can sign in but cannot change the user's credentials, and
    nothing is left after `close`. On systems without sealed memory the link points to the file itself. The
    names of the links are on the list of what is never archived.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self._links: list[Path] = []

    def link(self, files: Iterable[str], *, source: Path, home: Path) -> None:
        """Link these files of the user's home into the sandbox's home; missing ones are fine."""
        for name in files:
            real = source / name
            try:
                data = real.read_bytes()
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            if len(data) > _MAX_CREDENTIAL:
                raise InvalidInput(f"{real} has {len(data):,} bytes, which is too large for a credential")
            link = home / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.parent.resolve().is_relative_to(home.resolve()):
                continue  # a link leads out of the sandbox: nothing is touched there
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            link.symlink_to(self._sealed(data) or real)
            self._links.append(link)

    def close(self) -> None:
        """Remove the links and free the memory."""
        for link in self._links:
            with contextlib.suppress(OSError):
                if link.is_symlink():
                    link.unlink()
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
