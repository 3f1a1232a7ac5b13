"""The sandbox: a CLI agent or any program in a home of its own, with a checkpoint after each run.

Each successful foreground run leaves a checkpoint of the workspace and of the agent's settings and sessions,
in the storage of your choice. Another run can start from any of them, on this machine or another.
**Invariant:** an automatic checkpoint never breaks a run: a failure becomes a warning, an event in the
timeline, and ``checkpoint=None``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, get_args

import msgspec

from treering.core.batch import Usage
from treering.core.clock import SystemClock
from treering.core.ids import check_space
from treering.errors import Conflict, InvalidInput, NotFound, TreeringError
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.local import (
    CredentialLinks,
    relocate_sessions,
)
from treering.sandbox.profiles import AgentProfile, find_profile, treering_home
from treering.sandbox.providers import (
    LOCAL,
    Output,
    SandboxPlace,
    SandboxProvider,
    WorkspaceMode,
    find_provider,
)
from treering.sandbox.run import (
    ProgramRun,
    SessionLog,
    SessionMeta,
    TimelineRecorder,
    format_time,
)
from treering.sandbox.storage import (
    DEFAULT_LIMIT,
    CheckpointInfo,
    CheckpointMetadata,
    CheckpointStorage,
    OutputFile,
    SessionOutput,
    StorageLike,
    open_gateway,
    open_storage,
    parse_storage,
    storage_in,
)
from treering.secret_scan import describe_secrets
from treering.store import Store
from treering.workspaces.ignore import make_rules
from treering.workspaces.snapshot import target_folder

DEFAULT_PREFIX: Final = "treering"
_OUTPUT: Final = "output"


class CheckpointWarning(UserWarning):
    """An automatic checkpoint could not be taken. The run itself is not affected."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. ``checkpoint`` is ``None`` if none was taken; ``warning`` then says why.

    It also says if keys or passwords are in the checkpoint; ``checkpoint.secrets`` lists them.

    ``output`` is what the program wrote to stdout. For a background run it is empty, and ``exit_code`` is
    ``None``, until `Sandbox.wait`.
    """

    output: str
    exit_code: int | None
    checkpoint: CheckpointInfo | None
    sandbox_id: str
    text: str | None = None
    run_id: str | None = None
    warning: str | None = None


class Sandbox:
    """A place for an agent to work in. Use it in a ``with`` statement, or `kill` it.

    Args:
        agent: The name of a profile (`treering.sandbox.profiles`), or a profile.
        storage: Where checkpoints go: a `StorageConfig`, or a URL, a folder or a dict of its fields. By
            default into ``store``; without one, none are taken.
        session: The id of a sandbox of this provider to continue with.
        provider: Where programs run: ``local``, another provider, or its name (`treering.sandbox.providers`).
        workspace: A folder of yours to work in, which stays when the sandbox is removed.
        store: Where runs are recorded. With a treering server as storage, runs are recorded there.
        env: Additional environment variables.
        pass_env: Names and patterns (``AWS_*``) of variables of this process that programs get as well.
            Without it they get what they need to run, and what the profile lists
            (`AgentProfile.variables`): other keys stay out of the sandbox.
        arguments: Additional arguments of the agent's command.
        exclude: Patterns for the workspace in .gitignore syntax, as is ``include``.
    """

    def __init__(
        self,
        agent: str | AgentProfile = "claude",
        *,
        model: str | None = None,
        workspace_mode: WorkspaceMode = "knowledge",
        session: str | None = None,
        storage: StorageLike | None = None,
        session_tag_prefix: str | None = None,
        provider: str | SandboxProvider = LOCAL,
        store: Store | None = None,
        workspace: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        pass_env: Sequence[str] = (),
        arguments: Sequence[str] = (),
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
        sessions_folder: str | Path | None = None,
        on_output: Output | None = None,
    ) -> None:
        if workspace_mode not in get_args(WorkspaceMode):
            raise InvalidInput(f"workspace_mode={workspace_mode!r} is unknown; use 'knowledge' or 'swe'")
        self._profile = find_profile(agent)
        self._model = model
        self._mode: WorkspaceMode = workspace_mode
        self._provider = find_provider(provider)
        self._prefix = _check_prefix(session_tag_prefix or DEFAULT_PREFIX)
        self._checkpoints = _LazyStorage(storage, store)
        self._workspace = None if workspace is None else Path(workspace).expanduser().absolute()
        self._env = dict(env or {})
        if isinstance(pass_env, str):
            raise InvalidInput(f"pass_env={pass_env!r} is not a list; pass [{pass_env!r}]")
        self._pass_env = tuple(pass_env)
        self._arguments = tuple(arguments)
        if exclude or include:
            make_rules(exclude=exclude, include=include)  # refuse invalid patterns now
        self._exclude, self._include = tuple(exclude), tuple(include)
        self._sessions_folder = Path(sessions_folder) if sessions_folder is not None else None
        self._on_output = on_output
        self._session_id = session
        self._session: SandboxSession | None = None
        self._running: ProgramRun | None = None
        self._recorder: TimelineRecorder | None = None

    def run(
        self,
        prompt: str,
        *,
        from_: str | None = None,
        checkpoint_comment: str | None = None,
        background: bool = False,
    ) -> RunResult:
        """Give the agent a prompt; take a checkpoint if it succeeds.

        Args:
            from_: A checkpoint id, or ``"latest"``. The run starts in a new sandbox with the checkpoint's
                files, and the checkpoint becomes the parent of the next one. Agent and workspace mode must be
                those of the checkpoint; the model may differ. The previous sandbox is removed once all files
                are restored and verified; if that fails, nothing has changed.
            background: Return at once, and take no checkpoint; `wait` returns the result.
        """
        session = self._prepare_session(from_)
        command = self._profile.command_line(
            prompt, model=self._model, resume=session.can_resume, arguments=self._arguments
        )
        return self._start(session, command, prompt, checkpoint_comment, background=background)

    def execute(
        self,
        command: Sequence[str],
        *,
        from_: str | None = None,
        checkpoint_comment: str | None = None,
        background: bool = False,
    ) -> RunResult:
        """Run a command in the sandbox, otherwise like `run`."""
        words = list(command)
        if not words or isinstance(command, str):
            raise InvalidInput(f"command={command!r} is not a list; pass ['sh', '-c', 'echo hi'] or the like")
        return self._start(
            self._prepare_session(from_), words, None, checkpoint_comment, background=background
        )

    def wait(self) -> RunResult:
        """Wait for the background run; return its result."""
        if self._running is None:
            raise InvalidInput("nothing is running in the background; start it with run(background=True)")
        return self._finish(self._running, comment=None, takes_checkpoint=False)

    def checkpoint(self, *, comment: str | None = None) -> CheckpointInfo:
        """Take a checkpoint now."""
        if self._session is None and self._session_id is None:
            raise InvalidInput("no active sandbox to take a checkpoint of; call run() first")
        return self._take_checkpoint(self._open_session(), comment)

    def list_checkpoints(self, *, limit: int = DEFAULT_LIMIT, tag: str | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints of the storage, newest first; ``tag`` selects a session."""
        return self._checkpoints.require().list(limit=limit, tag=tag)

    def download(
        self, checkpoint: str, files: str | Sequence[str], target: str | Path, *, overwrite: bool = False
    ) -> tuple[str, ...]:
        """Write files, folders or patterns of a checkpoint into a folder, without restoring it."""
        storage = self._checkpoints.require()
        return storage.download(storage.find(checkpoint), files, target, overwrite=overwrite)

    def output(self) -> SessionOutput:
        """Describe the files that the agent has left in the ``output`` folder of the workspace by now.

        ``tag`` and ``sandbox_id`` are those of the session log. `CheckpointStorage.output` describes that of
        a checkpoint.
        """
        at = self._active("describe the output of")
        at.pull()
        folder = at.workspace / _OUTPUT
        found = (Path(top) / name for top, _, names in os.walk(folder) for name in names)
        files = sorted(each for each in found if each.is_file() and not each.is_symlink())
        return SessionOutput(
            tag=self.get_session_tag(),
            sandbox_id=at.id,
            checkpoint=None,
            files=tuple(
                OutputFile(path=each.relative_to(folder).as_posix(), size_bytes=each.stat().st_size)
                for each in files
            ),
        )

    def download_output(
        self, target: str | Path, *, checkpoint: str | None = None, overwrite: bool = False
    ) -> tuple[str, ...]:
        """Copy the ``output`` folder, or that of a checkpoint, into a folder; return the paths in it."""
        if checkpoint is not None:
            storage = self._checkpoints.require()
            return storage.download_output(storage.find(checkpoint), target, overwrite=overwrite)
        files = [each.path for each in self.output().files]
        folder = self._active("download the output of").workspace / _OUTPUT
        with target_folder(target) as made:
            taken = [each for each in files if (made / each).exists()]
            if taken and not overwrite:
                raise Conflict(f"{made / taken[0]} exists; choose another folder, or pass overwrite=True")
            for each in files:
                (made / each).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / each, made / each, follow_symlinks=False)
        return tuple(files)

    def start(self) -> Self:
        """Create the sandbox without running anything, so that files can be put into it."""
        self._open_session()
        return self

    def pause(self) -> None:
        """Stop the running program, and flush the log. The session continues with `resume`."""
        if self._session is None:
            raise InvalidInput("no active sandbox to pause; call run() first")
        if self._running is not None:
            self._running.program.stop()
        self._session.flush()
        self._session.is_paused = True

    def resume(self) -> None:
        """Continue after `pause`. A run resumes by itself."""
        if self._session is None or not self._session.is_paused:
            return
        if self._running is not None:
            self._running.program.cont()
        self._session.is_paused = False

    def kill(self) -> None:
        """End every program of the sandbox, close the log, and remove the sandbox."""
        at = None if self._session is None else self._session.at
        if at is None and self._session_id is not None:
            with contextlib.suppress(NotFound):
                at = self._provider.find(self._session_id)
        self._close_session()
        self._session_id = None
        if at is not None:
            at.remove()

    def set_session(self, sandbox_id: str) -> None:
        """Continue with another sandbox of the provider: the log is closed, and the lineage starts anew."""
        self._provider.find(sandbox_id)
        self._close_session()
        self._session_id = sandbox_id

    def get_session(self) -> str | None:
        """Return the id of the sandbox; ``None`` before the first run."""
        return self._session_id if self._session is None else self._session.at.id

    def get_session_tag(self) -> str | None:
        """Return the tag of this session's log and checkpoints; ``None`` before the first run."""
        return None if self._session is None else self._session.tag

    def get_session_timestamp(self) -> str | None:
        """Return when this session started, as in the name of its log; ``None`` before the first run."""
        return None if self._session is None else self._session.timestamp

    @property
    def log_path(self) -> Path | None:
        """The file of this session's log."""
        return None if self._session is None else self._session.log_path

    @property
    def home(self) -> Path:
        """The home folder of programs in the sandbox."""
        return self._open_session().at.home

    @property
    def workspace(self) -> Path:
        """The folder that programs in the sandbox start in."""
        return self._open_session().at.workspace

    def close(self) -> None:
        """Close everything without removing the sandbox; ``session=`` continues with it."""
        self._close_session()
        self._checkpoints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.kill()
        finally:
            self.close()

    def _active(self, what: str) -> SandboxPlace:
        if self._session is None and self._session_id is None:
            raise InvalidInput(f"no active sandbox to {what}; call run() first")
        return self._open_session().at

    def _prepare_session(self, from_: str | None) -> SandboxSession:
        if self._running is not None:
            raise InvalidInput("a background run is still active; wait() for it, or kill()")
        self.resume()
        return self._open_session() if from_ is None else self._restore(from_)

    def _restore(self, checkpoint: str) -> SandboxSession:
        if self._session_id is not None:
            raise InvalidInput(
                f"from_={checkpoint!r} needs a new sandbox and cannot be combined with session "
                f"{self._session_id!r}; leave one of them out"
            )
        storage = self._checkpoints.require()
        info = storage.find(checkpoint)
        info.check_fits(agent=self._profile.name, workspace_mode=self._mode)
        at = self._provider.create(self._profile, self._mode, self._workspace, empty=True)
        try:
            session = self._new_session(at)
            folders = self._folders(at)

            def before_switch() -> None:
                relocate_sessions(self._profile, at, info.workspace_path)
                session.link_credentials()
                if not at.has_own_workspace and any(at.workspace.iterdir()):
                    files = msgspec.structs.replace(folders, settings=())
                    self._save(session, f"before the restore of {info.id}", files)

            try:
                storage.restore(info, folders, before_switch=before_switch)
                at.push()
                at.publish()
            except BaseException:
                session.close()
                raise
        except BaseException:
            at.remove()
            raise
        session.parent = info.id
        self.kill()
        self._session = session
        return session

    def _open_session(self) -> SandboxSession:
        if self._session is not None:
            return self._session
        if self._session_id is None:
            made = self._provider.create(self._profile, self._mode, self._workspace)
            self._session = self._new_session(made)
            return self._session
        found = self._provider.find(self._session_id)
        if found.agent != self._profile.name:
            raise InvalidInput(
                f"sandbox {found.id} belongs to agent {found.agent!r}, not to {self._profile.name!r}; "
                "pass that agent"
            )
        self._session = self._new_session(found)
        return self._session

    def _folders(self, at: SandboxPlace) -> SandboxFolders:
        """Return what of a sandbox belongs to a checkpoint."""
        return SandboxFolders(
            home=at.home.resolve(),
            workspace=at.workspace.resolve(),
            settings=self._profile.settings,
            exclude=self._exclude,
            include=self._include,
        )

    def _new_session(self, at: SandboxPlace) -> SandboxSession:
        return SandboxSession(
            at,
            self._profile,
            prefix=self._prefix,
            provider=self._provider.name,
            model=self._model,
            logs=self._sessions_folder or treering_home() / "sessions",
        )

    def _close_session(self) -> None:
        running, self._running = self._running, None
        recorder, self._recorder = self._recorder, None
        if running is not None:
            running.program.end()
            if recorder is not None:
                recorder.abandon(running.finish())
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _start(
        self,
        session: SandboxSession,
        command: list[str],
        prompt: str | None,
        comment: str | None,
        *,
        background: bool,
    ) -> RunResult:
        self._checkpoints.get()  # fail now if the storage cannot be opened
        self._recorder = session.recorder(self._checkpoints.timeline, model=self._model)
        self._running = running = ProgramRun(
            command,
            start=partial(
                session.at.start,
                command,
                profile=self._profile,
                env={**self._recorder.variables(), **self._env},
                pass_env=self._pass_env,
            ),
            profile=self._profile,
            prompt=prompt,
            log=session.log,
            recorder=self._recorder,
            on_output=self._on_output,
        )
        if not background:
            return self._finish(running, comment=comment, takes_checkpoint=True)
        return RunResult(
            output="",
            exit_code=None,
            checkpoint=None,
            sandbox_id=session.at.id,
            run_id=self._recorder.run_id,
        )

    def _finish(self, running: ProgramRun, *, comment: str | None, takes_checkpoint: bool) -> RunResult:
        session = self._open_session()
        recorder, self._recorder = self._recorder, None
        try:
            exit_code = running.finish()
        except BaseException:  # a KeyboardInterrupt ends the program as well
            running.program.end()
            if recorder is not None:
                recorder.abandon(running.finish())
            raise
        finally:
            self._running = None
        problems, summary = running.failures, None
        if recorder is not None:
            try:
                summary = recorder.end(exit_code)
            except TreeringError as error:
                problems.append(f"the run could not be recorded: {error}")
        if summary is not None and summary.usage:
            session.usage = summary.usage
        checkpoint = None
        succeeded = exit_code == 0 and not (summary is not None and summary.is_error)
        if takes_checkpoint and succeeded and self._checkpoints.get() is not None:
            checkpoint = self._try_checkpoint(session, comment, problems)
            if checkpoint is not None and checkpoint.secrets:
                problems.append(f"the checkpoint has secrets: {describe_secrets(checkpoint.secrets)}")
        elif not session.at.is_local:
            try:
                session.at.pull()
            except Exception as error:  # noqa: BLE001 - the run has ended, whatever happens here
                problems.append(f"the files of the sandbox could not be fetched: {error}")
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

    def _try_checkpoint(
        self, session: SandboxSession, comment: str | None, problems: list[str]
    ) -> CheckpointInfo | None:
        try:
            return self._take_checkpoint(session, comment)
        except Exception as error:  # noqa: BLE001 - the run has succeeded, whatever happens here
            problems.append(f"no checkpoint was taken: {error}")
            warnings.warn(problems[-1], CheckpointWarning, stacklevel=5)
            return None

    def _take_checkpoint(self, session: SandboxSession, comment: str | None) -> CheckpointInfo:
        session.at.pull()
        return self._save(session, comment, self._folders(session.at))

    def _save(self, session: SandboxSession, comment: str | None, folders: SandboxFolders) -> CheckpointInfo:
        metadata = CheckpointMetadata(
            tag=session.tag,
            agent_type=self._profile.name,
            model=self._model,
            workspace_mode=self._mode,
            parent_id=session.parent,
            comment=comment,
            workspace_path=session.at.workspace_path,
            sandbox_id=session.at.id,
            provider=self._provider.name,
        )
        info = self._checkpoints.require().save(folders, metadata)
        session.parent = info.id
        return info


class SandboxSession:
    """One sandbox from its first run to `kill` or `set_session`, with its tag, log and lineage.

    ``parent`` is the checkpoint that the sandbox is at, ``usage`` the tokens that its agent has counted so
    far.
    """

    def __init__(
        self,
        at: SandboxPlace,
        profile: AgentProfile,
        *,
        prefix: str,
        provider: str,
        model: str | None,
        logs: Path,
    ) -> None:
        self.at = at
        self.tag = f"{prefix}-{secrets.token_hex(8)}"
        self.timestamp = format_time(SystemClock().now_us())
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
        self._credentials = CredentialLinks()
        self.link_credentials()

    @property
    def log(self) -> SessionLog:
        """The session's log, which starts with the first run."""
        if self._log is None:
            self._log = SessionLog(self._logs, self._meta)
        return self._log

    @property
    def log_path(self) -> Path | None:
        """The file of the log, if it has started."""
        return None if self._log is None else self._log.path

    @property
    def can_resume(self) -> bool:
        """Whether the agent has a session of its own to resume."""
        pattern = self._profile.sessions
        return pattern is not None and next(iter(self.at.home.glob(pattern)), None) is not None

    def link_credentials(self) -> None:
        """Let the agent read what its user signs in with; elsewhere it has only environment variables."""
        if self.at.is_local:
            self._credentials.link(self._profile.credentials, source=Path.home(), home=self.at.home)

    def recorder(self, store: Store | None, *, model: str | None) -> TimelineRecorder:
        """Return the recorder of the next run."""
        meta = {"sandbox_id": self.at.id}
        if self.parent is not None:
            meta["parent_checkpoint"] = self.parent
        return TimelineRecorder(
            store,
            agent=self._profile.name,
            model=model,
            tag=self.tag,
            meta=meta,
            before=self.usage,
            is_resumed=self.can_resume,
        )

    def flush(self) -> None:
        """Return when the log is written."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """End the log, and remove the credentials."""
        if self._log is not None:
            self._log.close()
        self._credentials.close()


class _LazyStorage:
    """The storage of a sandbox, opened when it is first needed: the chosen one, else the store."""

    def __init__(self, config: StorageLike | None, store: Store | None) -> None:
        self._config = None if config is None else parse_storage(config)
        self._store = store
        self._server: Store | None = None
        self._opened: CheckpointStorage | None = None

    @property
    def timeline(self) -> Store | None:
        """Where runs are recorded: the store, else the treering server that the checkpoints go to."""
        return self._store or self._server

    def get(self) -> CheckpointStorage | None:
        """Return the storage; ``None`` if there is none."""
        if self._opened is None:
            if self._config is None:
                self._opened = None if self._store is None else storage_in(self._store)
            elif self._config.is_gateway:
                self._server = open_gateway(self._config)
                self._opened = storage_in(self._server)
            else:
                self._opened = open_storage(self._config)
        return self._opened

    def require(self) -> CheckpointStorage:
        """Return the storage; raise if there is none."""
        storage = self.get()
        if storage is None:
            raise InvalidInput("this sandbox has no storage; pass storage=StorageConfig(...) or store=")
        return storage

    def close(self) -> None:
        """Close what was opened here."""
        storage, self._opened = self._opened, None
        server, self._server = self._server, None
        if storage is not None:
            storage.close()
        if server is not None:
            server.close()


def _check_prefix(prefix: str) -> str:
    try:
        return check_space(prefix)
    except InvalidInput:
        raise InvalidInput(
            f"session_tag_prefix={prefix!r} is invalid; use up to 120 letters, digits, _ . and -, "
            "not starting with a dot"
        ) from None
