"""The sandbox: a CLI agent or any program in a home of its own, kept moment by moment.

Each successful run in the foreground leaves a checkpoint behind: the workspace and the agent's settings and
sessions, in the storage that was chosen. Any of them can be the beginning of another run, here or on another
machine. **Invariant:** an automatic checkpoint never breaks a run: what goes wrong is a warning, an event in
the timeline, and ``checkpoint=None``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, get_args

from treering.core.batch import Usage
from treering.core.clock import SystemClock
from treering.core.ids import check_space
from treering.errors import InvalidInput, NotFound, TreeringError
from treering.sandbox.config import StorageConfig
from treering.sandbox.local import (
    LocalSandbox,
    Vault,
    WorkspaceMode,
    environment_of,
    find_sandbox,
    make_sandbox,
    resettle,
)
from treering.sandbox.profiles import AgentProfile, find_profile, treering_home
from treering.sandbox.records import CheckpointInfo, Label, RunResult
from treering.sandbox.run import Output, Recorder, Running, SessionLog, SessionMeta, end_all_of, iso_of
from treering.sandbox.storage import DEFAULT_LIMIT, Depot, depot_in, open_depot, open_gateway
from treering.store import Store
from treering.workspaces.ignore import make_rules

# -----------------------------------------------------------------------------------------------------------
# Keeping: where the checkpoints of one sandbox go. It is opened when it is first needed.


class Keeping:
    """The storage that was chosen; without one, the store if there is one."""

    def __init__(self, storage: StorageConfig | str | Path | None, store: Store | None) -> None:
        self._storage = StorageConfig(storage) if isinstance(storage, str | Path) else storage
        self._store = store
        self._server: Store | None = None
        self._depot: Depot | None = None

    @property
    def timeline(self) -> Store | None:
        """Where runs are recorded: the store, else the treering server that the checkpoints go to."""
        return self._store or self._server

    def depot(self) -> Depot | None:
        """The checkpoints; ``None`` when nothing says where they go."""
        if self._depot is None:
            if self._storage is None:
                self._depot = None if self._store is None else depot_in(self._store)
            elif self._storage.is_gateway:
                self._server = open_gateway(self._storage)
                self._depot = depot_in(self._server)
            else:
                self._depot = open_depot(self._storage)
        return self._depot

    def needed(self) -> Depot:
        """The checkpoints; to have none is an error."""
        depot = self.depot()
        if depot is None:
            raise InvalidInput("this sandbox has no storage; pass storage=StorageConfig(...) or store=")
        return depot

    def close(self) -> None:
        """Let go of what was opened here."""
        depot, self._depot = self._depot, None
        server, self._server = self._server, None
        if depot is not None:
            depot.close()
        if server is not None:
            server.close()


# -----------------------------------------------------------------------------------------------------------
# A session: one sandbox from its first run to `kill` or `set_session`, with its tag, log and lineage.


class Session:
    """What belongs to one sandbox for as long as this process works in it.

    ``parent`` is the checkpoint that it is at, ``usage`` the tokens that its agent has counted so far.
    """

    def __init__(
        self,
        at: LocalSandbox,
        profile: AgentProfile,
        *,
        prefix: str,
        provider: str,
        model: str | None,
        logs: Path,
    ) -> None:
        self.at = at
        self.tag = f"{prefix}-{secrets.token_hex(8)}"
        self.timestamp = iso_of(SystemClock().now_us())
        self.parent: str | None = None
        self.usage: dict[str, Usage] | None = None
        self.is_paused = False
        self._profile = profile
        self._logs = logs
        self._meta = SessionMeta(
            tag=self.tag,
            provider=provider,
            agent=profile.name,
            model=model,
            sandbox_id=at.id,
            timestamp=self.timestamp,
        )
        self._log: SessionLog | None = None
        self._vault = Vault()
        self.link()

    @property
    def log(self) -> SessionLog:
        """Its log, which begins with the first run."""
        if self._log is None:
            self._log = SessionLog(self._logs, self._meta)
        return self._log

    @property
    def log_path(self) -> Path | None:
        """The file of its log, if there is one yet."""
        return None if self._log is None else self._log.path

    @property
    def goes_on(self) -> bool:
        """Whether the agent has a session of its own to go on with."""
        pattern = self._profile.sessions
        return pattern is not None and next(iter(self.at.home.glob(pattern)), None) is not None

    def link(self) -> None:
        """Let the agent read what its user signs in with."""
        self._vault.link(self._profile.credentials, source=Path.home(), home=self.at.home)

    def recorder(self, store: Store | None, *, model: str | None) -> Recorder:
        """What writes the next run into a timeline, if there is one."""
        meta = {"sandbox_id": self.at.id}
        if self.parent is not None:
            meta["parent_checkpoint"] = self.parent
        return Recorder(
            store,
            agent=self._profile.name,
            model=model,
            tag=self.tag,
            meta=meta,
            before=self.usage,
            goes_on=self.goes_on,
        )

    def flush(self) -> None:
        """Return when the log is written."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """End the log, and take the credentials away."""
        if self._log is not None:
            self._log.close()
        self._vault.close()


def check_prefix(prefix: str) -> str:
    """What tags of sessions begin with: a word that a file name can have in it."""
    try:
        return check_space(prefix)
    except InvalidInput:
        raise InvalidInput(
            f"session_tag_prefix={prefix!r} is not acceptable; use letters, digits, _ . and -, at most 120, "
            "and do not begin with a dot"
        ) from None


# -----------------------------------------------------------------------------------------------------------

Provider = Literal["local"]

DEFAULT_PREFIX: Final = "treering"


class CheckpointWarning(UserWarning):
    """An automatic checkpoint could not be taken; the run itself is not affected."""


class Sandbox:
    """A place for an agent to work in. Use it in a ``with`` statement, or `kill` it.

    ``agent`` names a profile (`treering.sandbox.profiles`); ``storage`` says where checkpoints go (see
    `StorageConfig`; ``None``: into ``store`` if there is one, else none are taken). ``session`` is the id of
    a sandbox of this machine to go on with. ``workspace`` is a folder of yours to work in, which stays when
    the sandbox goes. Runs are recorded in the timeline of ``store`` (with a treering server as storage, in
    its); ``env`` adds to the environment, ``arguments`` to the agent's command, ``exclude`` and ``include``
    are patterns for the workspace as in .gitignore.
    """

    def __init__(
        self,
        agent: str | AgentProfile = "claude",
        *,
        model: str | None = None,
        workspace_mode: WorkspaceMode = "knowledge",
        session: str | None = None,
        storage: StorageConfig | str | Path | None = None,
        session_tag_prefix: str | None = None,
        provider: Provider = "local",
        store: Store | None = None,
        workspace: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
        sessions_folder: str | Path | None = None,
        on_output: Output | None = None,
    ) -> None:
        if workspace_mode not in get_args(WorkspaceMode):
            raise InvalidInput(f"workspace_mode={workspace_mode!r} is none; use 'knowledge' or 'swe'")
        if provider not in get_args(Provider):
            raise InvalidInput(f"no provider {provider!r}; this version has 'local'")
        self._profile = find_profile(agent)
        self._model = model
        self._mode: WorkspaceMode = workspace_mode
        self._provider = provider
        self._prefix = check_prefix(session_tag_prefix or DEFAULT_PREFIX)
        self._keeping = Keeping(storage, store)
        self._workspace = None if workspace is None else Path(workspace).expanduser().absolute()
        self._env = dict(env or {})
        self._arguments = tuple(arguments)
        if exclude or include:
            make_rules(exclude=exclude, include=include)  # refuses what is no list of patterns, now
        self._exclude, self._include = tuple(exclude), tuple(include)
        self._sessions_folder = Path(sessions_folder) if sessions_folder is not None else None
        self._on_output = on_output
        self._wanted = session
        self._session: Session | None = None
        self._running: Running | None = None
        self._recorder: Recorder | None = None

    # Running
    def run(
        self,
        prompt: str,
        *,
        from_: str | None = None,
        checkpoint_comment: str | None = None,
        background: bool = False,
    ) -> RunResult:
        """Give the agent a prompt; when it succeeds, keep what is there then.

        ``from_`` is a checkpoint's id, or ``"latest"``: the run begins in a fresh sandbox with its files, and
        it becomes the parent of the next checkpoint. The agent and the workspace mode must be those of the
        checkpoint; the model may differ. In the ``background`` it returns at once and leaves no checkpoint;
        `wait` gives its result.
        """
        session = self._ready(from_)
        command = self._profile.line(
            prompt, model=self._model, goes_on=session.goes_on, arguments=self._arguments
        )
        return self._go(session, command, prompt, checkpoint_comment, background=background)

    def execute(
        self,
        command: Sequence[str],
        *,
        from_: str | None = None,
        checkpoint_comment: str | None = None,
        background: bool = False,
    ) -> RunResult:
        """Run any command in the sandbox; all else is as with `run`."""
        words = list(command)
        if not words or isinstance(command, str):
            raise InvalidInput(
                f"command={command!r} is no list of words; give ['sh', '-c', 'echo hi'] or the like"
            )
        return self._go(self._ready(from_), words, None, checkpoint_comment, background=background)

    def wait(self) -> RunResult:
        """The result of the run in the background, once it is through."""
        if self._running is None:
            raise InvalidInput("nothing runs in the background; run(background=True) starts something")
        return self._finish(self._running, comment=None, keeps=False)

    def checkpoint(self, *, comment: str | None = None) -> CheckpointInfo:
        """Keep the sandbox as it is now."""
        if self._session is None and self._wanted is None:
            raise InvalidInput("there is no active sandbox to keep; call run() first")
        return self._keep(self._active(), comment)

    def list_checkpoints(self, *, limit: int = DEFAULT_LIMIT, tag: str | None = None) -> list[CheckpointInfo]:
        """The checkpoints of the storage, newest first, of every session unless a ``tag`` is given."""
        return self._keeping.needed().list(limit=limit, tag=tag)

    def download(
        self, checkpoint: str, files: str | Sequence[str], target: str | Path, *, overwrite: bool = False
    ) -> tuple[str, ...]:
        """Write single files, folders or patterns of a checkpoint into a folder, without restoring it."""
        depot = self._keeping.needed()
        return depot.download(depot.find(checkpoint), files, target, overwrite=overwrite)

    # The session
    def start(self) -> Self:
        """Make the sandbox without running anything, so that files can be put into it."""
        self._active()
        return self

    def pause(self) -> None:
        """Hold whatever runs, and write the log out. The session stays what it is."""
        if self._session is None:
            raise InvalidInput("there is no active sandbox to pause; call run() first")
        if self._running is not None:
            self._running.program.stop()
        self._session.flush()
        self._session.is_paused = True

    def resume(self) -> None:
        """Let it go on. A run does this by itself."""
        if self._session is None or not self._session.is_paused:
            return
        if self._running is not None:
            self._running.program.go_on()
        self._session.is_paused = False

    def kill(self) -> None:
        """End whatever runs or was left running, close the log, and remove the sandbox."""
        at = None if self._session is None else self._session.at
        if at is None and self._wanted is not None:
            with contextlib.suppress(NotFound):
                at = find_sandbox(self._wanted)
        self._leave()
        self._wanted = None
        if at is not None:
            end_all_of(at.home)
            at.remove()

    def set_session(self, sandbox_id: str) -> None:
        """Go on with another sandbox of this machine; the log is closed, the lineage begins anew."""
        find_sandbox(sandbox_id)
        self._leave()
        self._wanted = sandbox_id

    def get_session(self) -> str | None:
        """The id of the sandbox; ``None`` before the first run."""
        return self._wanted if self._session is None else self._session.at.id

    def get_session_tag(self) -> str | None:
        """The tag of this session's log and checkpoints; ``None`` before the first run."""
        return None if self._session is None else self._session.tag

    def get_session_timestamp(self) -> str | None:
        """When this session began, as in the name of its log; ``None`` before the first run."""
        return None if self._session is None else self._session.timestamp

    @property
    def log_path(self) -> Path | None:
        """The file of this session's log."""
        return None if self._session is None else self._session.log_path

    @property
    def home(self) -> Path:
        """The home that programs in the sandbox have."""
        return self._active().at.home

    @property
    def workspace(self) -> Path:
        """The folder that programs in the sandbox start in."""
        return self._active().at.workspace

    def close(self) -> None:
        """Let go of everything without removing the sandbox; ``session=`` finds it again."""
        self._leave()
        self._keeping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.kill()
        finally:
            self.close()

    # How it is done
    def _ready(self, from_: str | None) -> Session:
        if self._running is not None:
            raise InvalidInput("a run in the background is not over yet; wait() for it, or kill()")
        self.resume()
        return self._active() if from_ is None else self._restored(from_)

    def _restored(self, which: str) -> Session:
        if self._wanted is not None:
            raise InvalidInput(
                f"from_={which!r} needs a fresh sandbox and cannot be combined with session "
                f"{self._wanted!r}; leave one of them out"
            )
        depot = self._keeping.needed()
        info = depot.find(which)
        info.check_fits(agent=self._profile.name, workspace_mode=self._mode)
        if self._session is not None:
            self.kill()
        session = self._enter(make_sandbox(self._profile, self._mode, self._workspace, is_empty=True))
        at = session.at
        if not at.has_own_workspace and any(at.workspace.iterdir()):
            self._keep(session, f"before the restore of {info.id}")
        depot.restore(info, at.place(self._profile, self._exclude, self._include))
        resettle(self._profile, at, info.workspace_path)
        session.link()
        session.parent = info.id
        return session

    def _active(self) -> Session:
        if self._session is not None:
            return self._session
        if self._wanted is None:
            return self._enter(make_sandbox(self._profile, self._mode, self._workspace, is_empty=False))
        found = find_sandbox(self._wanted)
        if found.record.agent != self._profile.name:
            raise InvalidInput(
                f"sandbox {found.id} is of agent {found.record.agent!r}, not of {self._profile.name!r}; "
                "pass that agent"
            )
        return self._enter(found)

    def _enter(self, at: LocalSandbox) -> Session:
        self._session = Session(
            at,
            self._profile,
            prefix=self._prefix,
            provider=self._provider,
            model=self._model,
            logs=self._sessions_folder or treering_home() / "sessions",
        )
        return self._session

    def _leave(self) -> None:
        running, self._running = self._running, None
        recorder, self._recorder = self._recorder, None
        if running is not None:
            running.program.end()
            if recorder is not None:
                recorder.give_up(running.finish())
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _go(
        self,
        session: Session,
        command: list[str],
        prompt: str | None,
        comment: str | None,
        *,
        background: bool,
    ) -> RunResult:
        self._keeping.depot()  # a storage that cannot be opened is said before anything runs
        self._recorder = session.recorder(self._keeping.timeline, model=self._model)
        self._running = running = Running(
            command,
            folder=session.at.workspace,
            environment=environment_of(session.at, self._profile, self._env, os.environ),
            profile=self._profile,
            prompt=prompt,
            log=session.log,
            recorder=self._recorder,
            on_output=self._on_output,
        )
        if not background:
            return self._finish(running, comment=comment, keeps=True)
        return RunResult(
            output="",
            exit_code=None,
            checkpoint=None,
            sandbox_id=session.at.id,
            run_id=self._recorder.run_id,
        )

    def _finish(self, running: Running, *, comment: str | None, keeps: bool) -> RunResult:
        session = self._active()
        recorder, self._recorder = self._recorder, None
        try:
            exit_code = running.finish()
        except BaseException:  # an interrupt from the keyboard ends the program as well
            running.program.end()
            if recorder is not None:
                recorder.give_up(running.finish())
            raise
        finally:
            self._running = None
        problems, summary = running.failures, None
        if recorder is not None:
            try:
                summary = recorder.end(exit_code)
            except TreeringError as error:
                problems.append(f"the timeline could not be recorded: {error}")
        if summary is not None and summary.usage:
            session.usage = summary.usage
        checkpoint = None
        succeeded = exit_code == 0 and not (summary is not None and summary.is_error)
        if keeps and succeeded and self._keeping.depot() is not None:
            checkpoint = self._kept_anyhow(session, comment, problems)
        if recorder is not None:
            recorder.close(problems)
        session.flush()
        return RunResult(
            output=running.output,
            exit_code=exit_code,
            checkpoint=checkpoint,
            sandbox_id=session.at.id,
            text=None if summary is None else summary.result,
            run_id=None if recorder is None else recorder.run_id,
            warning="; ".join(problems) or None,
        )

    def _kept_anyhow(
        self, session: Session, comment: str | None, problems: list[str]
    ) -> CheckpointInfo | None:
        try:
            return self._keep(session, comment)
        except Exception as error:  # noqa: BLE001 - the run was a success, whatever happens here
            problems.append(f"no checkpoint was taken: {error}")
            warnings.warn(problems[-1], CheckpointWarning, stacklevel=5)
            return None

    def _keep(self, session: Session, comment: str | None) -> CheckpointInfo:
        label = Label(
            tag=session.tag,
            agent_type=self._profile.name,
            model=self._model,
            workspace_mode=self._mode,
            parent_id=session.parent,
            comment=comment,
            workspace_path=str(session.at.workspace),
        )
        place = session.at.place(self._profile, self._exclude, self._include)
        info = self._keeping.needed().save(place, label)
        session.parent = info.id
        return info
