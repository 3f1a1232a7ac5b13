"""Providers of sandboxes: another one is found by its entry point, and everything works there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import treering
from treering.errors import InvalidInput, NotFound
from treering.sandbox import Sandbox, StorageConfig, register_provider
from treering.sandbox.local import LocalProvider, LocalSandbox
from treering.sandbox.profiles import AgentProfile
from treering.sandbox.providers import Output, RunningProgram, SandboxPlace, WorkspaceMode
from treering.sandbox.run import Program

ELSEWHERE = "TREERING_TEST_ELSEWHERE"


class Place:
    """A sandbox on a "machine" with folders of its own: what is not pulled or pushed is not there."""

    is_local = False
    has_own_workspace = True

    def __init__(self, id: str, agent: str, machine: Path, here: Path) -> None:
        self.id, self.agent = id, agent
        self.machine = machine / id
        self.home = here / id / "home"
        self.workspace = self.home / "workspace"

    @property
    def workspace_path(self) -> str:
        return str(self.machine / "workspace")

    def start(
        self,
        command: Sequence[str],
        *,
        profile: AgentProfile,
        env: Mapping[str, str],
        pass_env: Sequence[str],
        listener: Output,
    ) -> RunningProgram:
        assert (profile.name, pass_env) == (self.agent, ())
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.machine), **env}
        return Program(command, folder=self.machine / "workspace", environment=environment, listener=listener)

    def pull(self) -> None:
        _mirror(self.machine, self.home)

    def push(self) -> None:
        _mirror(self.home, self.machine)

    def publish(self) -> None:
        (self.machine / "published").touch()

    def remove(self) -> None:
        shutil.rmtree(self.machine, ignore_errors=True)
        shutil.rmtree(self.home.parent, ignore_errors=True)


class Elsewhere:
    """Runs programs on the "machine" that an environment variable names."""

    name = "elsewhere"

    def __init__(self) -> None:
        import os

        self.root = Path(os.environ[ELSEWHERE])

    def create(
        self, profile: AgentProfile, mode: WorkspaceMode, workspace: Path | None, *, empty: bool = False
    ) -> SandboxPlace:
        assert (mode, workspace) == ("knowledge", None)
        number = len(list(self.root.glob("machine/*")))
        place = Place(f"i{number:04}-e2b-like", profile.name, self.root / "machine", self.root / "here")
        place.workspace.mkdir(parents=True)
        (place.machine / "workspace").mkdir(parents=True)
        if not empty:
            place.publish()
        return place

    def find(self, sandbox_id: str) -> SandboxPlace:
        place = Place(sandbox_id, "program", self.root / "machine", self.root / "here")
        if not (place.machine / "published").exists():
            raise NotFound(f"sandbox {sandbox_id!r} not found at elsewhere")
        return place


def _mirror(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with an entry point, as pip leaves it."""
    about = tmp_path / "site" / "treering_elsewhere-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: treering-elsewhere\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[treering.sandbox_providers]\nelsewhere = {__name__}:{Elsewhere.__name__}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv(ELSEWHERE, str(tmp_path / "elsewhere"))
    assert __name__ in sys.modules
    return tmp_path / "elsewhere"


@pytest.mark.usefixtures("installed")
def test_a_provider_of_an_entry_point_runs_saves_and_restores(tmp_path: Path) -> None:
    storage = StorageConfig(tmp_path / "bucket")
    with Sandbox("program", provider="elsewhere", storage=storage) as sandbox:
        one = sandbox.execute(["sh", "-c", "echo kept > a.txt; mkdir output; echo r > output/r.md; pwd"])
        assert one.sandbox_id == "i0000-e2b-like"
        assert "/machine/i0000-e2b-like/" in one.output
        assert one.checkpoint is not None
        assert (one.checkpoint.provider, one.checkpoint.sandbox_id) == ("elsewhere", "i0000-e2b-like")
        sandbox.execute(["sh", "-c", "echo more > output/s.md; exit 4"])
        found = sandbox.output()
        assert [each.path for each in found.files] == ["r.md", "s.md"]
        assert (found.tag, found.sandbox_id) == (sandbox.get_session_tag(), "i0000-e2b-like")
        log = sandbox.log_path
        assert log is not None
        assert f"{sandbox.get_session_tag()}_elsewhere_i0000-e2b-like_program_" in log.name
        assert json.loads(log.read_bytes().splitlines()[0])["_meta"]["provider"] == "elsewhere"
        back = sandbox.execute(["cat", "a.txt"], from_=one.checkpoint.id)
        assert (back.output, back.sandbox_id) == ("kept\n", "i0001-e2b-like")


def test_a_session_is_continued_at_its_provider_only(installed: Path) -> None:
    sandbox = Sandbox("program", provider="elsewhere")
    made = sandbox.execute(["sh", "-c", "echo 1 > a.txt"]).sandbox_id
    sandbox.close()
    with Sandbox("program", provider="elsewhere", session=made) as again:
        assert again.execute(["cat", "a.txt"]).output == "1\n"
    assert not list((installed / "machine").iterdir())
    with pytest.raises(NotFound), Sandbox("program", provider="elsewhere", session=made) as gone:
        gone.execute(["true"])


def test_a_subclass_of_the_local_provider_wraps_commands(tmp_path: Path) -> None:
    class WrappedSandbox(LocalSandbox):
        def start(self, command: Sequence[str], **rest) -> RunningProgram:
            return super().start(["env", "WRAPPED=yes", *command], **rest)

    class Wrapped(LocalProvider):
        name = "wrapped"
        sandbox = WrappedSandbox

    register_provider(Wrapped())
    with (
        treering.open(tmp_path / "store") as store,
        Sandbox("program", provider="wrapped", store=store) as one,
    ):
        done = one.execute(["sh", "-c", "echo $WRAPPED"])
        assert done.output == "yes\n"
        one.close()
        with pytest.raises(InvalidInput, match="made by provider 'wrapped'"):
            Sandbox("program", session=done.sandbox_id).start()


def test_an_unknown_provider_is_refused_with_those_that_exist(installed: Path) -> None:
    assert installed
    with pytest.raises(InvalidInput, match=r"provider='e2b' is unknown; use one of: elsewhere, local"):
        Sandbox("program", provider="e2b")
    with pytest.raises(InvalidInput, match="it lacks name, create, find"):
        Sandbox("program", provider=object())
