"""Providers of sandboxes: where the programs of a sandbox run.

``local`` runs them on this machine (`treering.sandbox.local`). Another provider is an object with the two
methods of `SandboxProvider`, passed as ``provider=``, registered with `register_provider`, or named by an
entry point of the group ``treering.sandbox_providers``. Its sandboxes may be on another machine: `pull`
brings their files here before they are saved, `push` takes restored files there. Logs and checkpoints name
the provider and keep its own ids of sandboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol, cast

from treering.core.ids import check_space
from treering.errors import InvalidInput
from treering.plugins import load_plugin, plugins
from treering.sandbox.profiles import AgentProfile

WorkspaceMode = Literal["knowledge", "swe"]
Output = Callable[[str, bytes], None]
"""Called with ``stdout`` or ``stderr`` and one line, including its newline."""

LOCAL: Final = "local"


class RunningProgram(Protocol):
    """A program that runs in a sandbox."""

    def wait(self) -> int:
        """Wait until it has ended and its output is read; return its exit code, or minus the signal."""
        ...

    def stop(self) -> None:
        """Hold it until `cont`."""
        ...

    def cont(self) -> None:
        """Continue after `stop`."""
        ...

    def end(self) -> None:
        """Terminate it; kill it if that takes too long."""
        ...


class SandboxPlace(Protocol):
    """One sandbox: a home with the agent's settings, a workspace, and a way to run programs there.

    ``home`` and ``workspace`` are folders on this machine, which `pull` and `push` keep equal to those of the
    sandbox. ``workspace_path`` is where programs see the workspace.
    """

    @property
    def id(self) -> str:
        """The provider's id of the sandbox."""
        ...

    @property
    def agent(self) -> str:
        """The name of the profile that it was made for."""
        ...

    @property
    def home(self) -> Path:
        """The home folder."""
        ...

    @property
    def workspace(self) -> Path:
        """The folder that programs start in."""
        ...

    @property
    def workspace_path(self) -> str:
        """Where programs see the workspace."""
        ...

    @property
    def has_own_workspace(self) -> bool:
        """Whether the workspace belongs to the sandbox, and is removed with it."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether programs read ``home`` itself, so that credentials can be linked into it."""
        ...

    def start(
        self,
        command: Sequence[str],
        *,
        profile: AgentProfile,
        env: Mapping[str, str],
        pass_env: Sequence[str],
        listener: Output,
    ) -> RunningProgram:
        """Start a program in the workspace; its output goes to ``listener``, line by line.

        Besides ``env`` it gets those variables of this process that the profile or ``pass_env`` names.
        """
        ...

    def pull(self) -> None:
        """Bring what programs have changed to ``home`` and ``workspace``."""
        ...

    def push(self) -> None:
        """Bring ``home`` and ``workspace`` to where programs run."""
        ...

    def publish(self) -> None:
        """Complete a sandbox that was made ``empty``: from now on `SandboxProvider.find` finds it."""
        ...

    def remove(self) -> None:
        """End all programs and remove the sandbox; a workspace of the user's stays."""
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes and finds them again."""

    @property
    def name(self) -> str:
        """The name in session logs, checkpoints and ``provider=``."""
        ...

    def create(
        self, profile: AgentProfile, mode: WorkspaceMode, workspace: Path | None, *, empty: bool = False
    ) -> SandboxPlace:
        """Create a sandbox, with ``workspace`` as its workspace if given.

        An ``empty`` one has no folders in its workspace. It is filled and then published, or removed.
        """
        ...

    def find(self, sandbox_id: str) -> SandboxPlace:
        """Return an existing sandbox; raise `NotFound` if there is none."""
        ...


_registered: dict[str, SandboxProvider] = {}


def register_provider(provider: SandboxProvider) -> None:
    """Make a provider known by its name in this process."""
    _registered[_check(provider).name] = provider


def find_provider(provider: str | SandboxProvider) -> SandboxProvider:
    """Return a provider by its name: a registered one, ``local``, or that of an entry point."""
    if not isinstance(provider, str):
        return _check(provider)
    if provider in _registered:
        return _registered[provider]
    if provider == LOCAL:
        from treering.sandbox.local import LocalProvider

        return LocalProvider()
    loaded = load_plugin("sandbox_providers", provider)
    if loaded is not None:
        return _check(cast("SandboxProvider", loaded() if isinstance(loaded, type) else loaded))
    names = ", ".join(sorted({LOCAL, *_registered, *plugins("sandbox_providers")}))
    raise InvalidInput(
        f"provider={provider!r} is unknown; use one of: {names}. Others come with packages that "
        "have an entry point in 'treering.sandbox_providers', or from register_provider"
    )


def _check(provider: SandboxProvider) -> SandboxProvider:
    missing = [name for name in ("name", "create", "find") if not hasattr(provider, name)]
    if missing:
        raise InvalidInput(
            f"{type(provider).__name__} is no provider of sandboxes: it lacks {', '.join(missing)}"
        )
    check_space(provider.name)
    return provider
