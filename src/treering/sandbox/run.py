"""One run in a sandbox: a program, and everything that follows its output.

Each line of output goes to the caller, into the session log, and (with a store) into the timeline: as
messages, tool calls and tokens if the format is known, else as the output of one tool call. **Invariant:**
the program's output comes first. A listener that fails is dropped and named in the run's warning; it never
ends the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from treering.api import open as open_store
from treering.core.batch import Usage
from treering.core.clock import Clock, SystemClock, to_iso
from treering.core.ids import file_name
from treering.errors import InvalidInput, NotFound, TreeringError
from treering.files import FILE_MODE, make_folder
from treering.runs.run import CANCELLED, PARENT_VARIABLE
from treering.runs.span import current_node
from treering.sandbox.profiles import AgentProfile, StreamFormat
from treering.sandbox.providers import Output, RunningProgram
from treering.store import Store

if TYPE_CHECKING:
    from treering.importers.streams import Stream, StreamSummary
    from treering.runs.run import Run
    from treering.runs.span import Span

CANCEL_SECONDS: Final = 2.0
"""How often a run looks whether it was cancelled, which ends its program."""
_OUTPUT_BYTES: Final = 64 << 20
_RECORDED_BYTES: Final = 1 << 20
_MAX_LINE: Final = 1 << 20
_MAX_NAME_CHARS: Final = 240
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^\.")
_GRACE_SECONDS: Final = 5.0
_LINGER_SECONDS: Final = 2.0
_KILL_ROUNDS: Final = 10
_LOG_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_RESERVED_KEYS: Final = frozenset({"_meta", "_prompt", "_command", "_sessionEnd"})


class ProgramRun:
    """A run that has started; `finish` waits for it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        start: Callable[..., RunningProgram],
        profile: AgentProfile,
        prompt: str | None,
        log: SessionLog,
        recorder: TimelineRecorder,
        on_output: Output | None,
    ) -> None:
        self.prompt = prompt
        self.failures: list[str] = []
        self._output: list[bytes] = []
        self._size = 0
        self._log = log
        self._recorder: TimelineRecorder | None = recorder
        self._on_output = on_output
        if prompt is not None:
            log.prompt(prompt)
        else:
            log.command(command)
        recorder.begin(list(command), prompt, profile.stream_format(list(command)))
        try:
            self.program = start(listener=self._on_line)
        except BaseException as error:
            recorder.fail(error)
            recorder.close([])
            raise
        self._has_ended = Event()
        Thread(target=self._watch, args=(recorder,), name="treering-cancel", daemon=True).start()

    def finish(self) -> int:
        """Wait until the program has ended; return its exit code."""
        try:
            return self.program.wait()
        finally:
            self._has_ended.set()

    def _watch(self, recorder: TimelineRecorder) -> None:
        """End the program if somebody cancels its run, or one that it belongs to."""
        while not self._has_ended.wait(CANCEL_SECONDS):
            if recorder.is_cancelled():
                self.program.end()
                return

    @property
    def output(self) -> str:
        """What the program wrote to stdout, up to 64 MB."""
        return b"".join(self._output).decode("utf-8", "replace")

    def _on_line(self, source: str, line: bytes) -> None:
        if source == "stdout" and self._size < _OUTPUT_BYTES:
            self._output.append(line)
            self._size += len(line)
        self._log.payload(line, source=f"_{source}")
        if self._on_output is not None:
            try:
                self._on_output(source, line)
            except Exception as error:  # noqa: BLE001 - a listener must not end the run
                self._on_output = None
                self.failures.append(f"on_output failed: {error!r}")
        if self._recorder is not None:
            try:
                self._recorder.line(source, line)
            except Exception as error:  # noqa: BLE001 - neither must the timeline
                self.failures.append(f"the run could not be recorded: {error}")
                self._recorder.fail(error)
                self._recorder = None


class Program:
    """A running program in a process group of its own, whose output is passed on line by line.

    **Invariant:** the listener gets every byte once and in order.
    """

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], listener: Output
    ) -> None:
        if not command:
            raise InvalidInput("no command to run; pass one after --")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running commands is what a sandbox is for
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise NotFound(
                f"program {command[0]!r} not found on the PATH; install it, or pass its path"
            ) from error
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{command[0]!r} cannot be run: {error}") from error
        self._listener = listener
        self._lock = Lock()
        self._lines = 0
        self._readers = [
            Thread(target=self._read, args=(name, pipe), name=f"treering-{name}", daemon=True)
            for name, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until the program has ended and its output is read; return its exit code, or minus the signal.

        Processes that it left behind may keep its output open; those are not waited for.
        """
        code = self._process.wait()
        for reader in self._readers:
            before = -1
            while reader.is_alive() and before != self._lines:
                before = self._lines
                reader.join(_LINGER_SECONDS)
        return code

    def stop(self) -> None:
        """Stop it and its children (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Continue after `stop` (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Terminate it; kill it if that takes too long."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        self._signal(signal.SIGKILL)  # and what it started and left behind
        self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_MAX_LINE):
                with self._lock:
                    self._lines += 1
                    self._listener(name, line)


def kill_leftovers(home: Path) -> None:
    """Kill the processes that programs with this home left behind, whatever process group they are in.

    Linux shows the environment of a process, by which they are found; elsewhere this does nothing.
    """
    mark = os.fsencode(f"HOME={home}")
    for _ in range(_KILL_ROUNDS):  # they may have started more in the meantime
        if not sum(_kill_if(int(entry.name), mark) for entry in Path("/proc").glob("[0-9]*")):
            return


def _kill_if(number: int, mark: bytes) -> bool:
    if number == os.getpid():
        return False
    try:
        process = os.pidfd_open(number)  # from now on the number cannot be reused
    except (AttributeError, OSError):
        return False
    try:
        if mark not in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], _GRACE_SECONDS)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a session log."""

    tag: str
    provider: str
    agent: str
    model: str | None
    sandbox_id: str
    timestamp: str


class SessionLog:
    """The log of one sandbox session: a file of JSON lines, which people and programs can follow.

    ``{tag}_{provider}_{sandbox_id}_{agent}_{timestamp}.jsonl`` starts with a ``_meta`` line, has a
    ``_prompt`` line for every run and a ``_command`` line for every command, the output of the program, and a
    closing ``_sessionEnd``. Output that is a JSON object is written byte for byte; any other line is wrapped
    (``{"_stdout": "..."}``). A thread writes the file. **Invariant:** logging never waits for the disk and
    never fails because of it; an error is reported once, as a warning.
    """

    def __init__(self, folder: Path, meta: SessionMeta, *, clock: Clock | None = None) -> None:
        stamp = re.sub("[:.]", "-", meta.timestamp)
        name = f"{meta.tag}_{meta.provider}_{meta.sandbox_id}_{meta.agent}_{stamp}"
        # Words of the user's may be no part of a file name; the parts are otherwise readable in the name.
        is_odd = len(name) > _MAX_NAME_CHARS or _UNSAFE.search(name) is not None
        self.path = folder / f"{file_name(name) if is_odd else name}.jsonl"
        self._clock = clock or SystemClock()
        self._queue: SimpleQueue[bytes | Event | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="treering-session-log", daemon=True)
        self._is_open = True
        self._failure: str | None = None
        self._has_warned = False
        self._queue.put(_encode({"_meta": meta}))
        self._thread.start()

    def prompt(self, text: str) -> None:
        """Log the start of a run."""
        self._queue.put(_encode({"_prompt": {"text": text}}))

    def command(self, words: Sequence[str]) -> None:
        """Log the start of a command."""
        self._queue.put(_encode({"_command": {"text": shlex.join(words), "words": list(words)}}))

    def payload(self, data: bytes, *, source: str = "_stdout") -> None:
        """Log a line of the program's output."""
        line = data.rstrip(b"\r\n")
        if line:
            self._queue.put(_encode_payload(line, source) + b"\n")

    def flush(self) -> None:
        """Return when everything so far is written."""
        if self._is_open:
            done = Event()
            self._queue.put(done)
            done.wait()
            self._warn_once()

    def close(self) -> None:
        """Write the last line and close the file. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._queue.put(_encode({"_sessionEnd": {"timestamp": format_time(self._clock.now_us())}}))
            self._queue.put(None)
            self._thread.join()
            self._warn_once()

    def _write(self) -> None:
        file: int | None = None
        while True:
            item = self._queue.get()
            if item is None:
                break
            if isinstance(item, Event):
                item.set()
                continue
            if self._failure is not None:
                continue
            try:
                if file is None:
                    make_folder(self.path.parent)
                    file = os.open(self.path, _LOG_FLAGS, FILE_MODE)
                while item:
                    item = item[os.write(file, item) :]
            except OSError as error:
                self._failure = str(error)
        if file is not None:
            os.close(file)

    def _warn_once(self) -> None:
        if self._failure is not None and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the session log {self.path} cannot be written: {self._failure}",
                RuntimeWarning,
                stacklevel=3,
            )


def format_time(ts_us: int) -> str:
    """Return a time as session logs have it: ISO 8601 with milliseconds and Z."""
    return f"{to_iso(ts_us // 1000 * 1000).removesuffix('+00:00')[:23].ljust(19)}Z"


def _encode_payload(line: bytes, source: str) -> bytes:
    """Return a line of output for the log: itself, if it is a JSON object without our own keys."""
    if source == "_stdout" and line.startswith(b"{"):
        try:
            value: Any = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        else:
            if not _RESERVED_KEYS & value.keys():
                return line
    return msgspec.json.encode({source: line.decode("utf-8", "replace")})


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


class TimelineRecorder:
    """Follows the output of one run, and records it in the timeline of a store, if there is one.

    Without a store it records into memory, since the agent's result and tokens are read on the way.
    """

    def __init__(
        self,
        store: Store | None,
        *,
        agent: str,
        model: str | None,
        tag: str,
        meta: Mapping[str, Any],
        before: Mapping[str, Usage] | None,
        is_resumed: bool,
    ) -> None:
        self._is_recorded = store is not None
        self._store = store or open_store("memory:")
        self._model = model
        self._before = before
        self._is_resumed = is_resumed
        node = current_node.get()  # a tool of an agent, perhaps with a store object of its own
        self._run: Run = self._store.run(
            agent, tags=(tag,), meta=meta, parent=None if node is None else node.run_id
        )
        self._was_cancelled = False
        self._stream: Stream | None = None
        self._call: Span | None = None
        self._output: list[bytes] = []
        self._size = 0

    @property
    def run_id(self) -> str | None:
        """The run in the timeline, if there is a store."""
        return self._run.id if self._is_recorded else None

    def variables(self) -> dict[str, str]:
        """Return the environment by which runs that the program records are children of this one."""
        return {PARENT_VARIABLE: self._run.id} if self._is_recorded else {}

    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the run, or one that it belongs to; its end says so then."""
        with contextlib.suppress(TreeringError):
            self._was_cancelled = self._is_recorded and self._store.runs.is_cancelled(self._run.id)
        return self._was_cancelled

    def begin(self, command: list[str], prompt: str | None, format: StreamFormat | None) -> None:
        """Record that the program is about to start."""
        self._run.start()
        if prompt is not None:
            self._run.message("user", prompt)
        if format is None:
            self._call = self._run.tool(Path(command[0]).name, input=command).start()
            return
        from treering.importers.streams import Stream

        self._stream = Stream(
            self._run, format, model=self._model, before=self._before, is_resumed=self._is_resumed
        )

    def line(self, source: str, line: bytes) -> None:
        """Record a line of output."""
        if self._stream is not None:
            if source == "stdout":
                self._stream.take(line)
        elif self._size < _RECORDED_BYTES:
            self._output.append(line)
            self._size += len(line)

    def end(self, exit_code: int) -> StreamSummary | None:
        """Record the end of the program; everything is durable when this returns."""
        summary = None if self._stream is None else self._stream.finish()
        failed = exit_code != 0 or (summary is not None and summary.is_error)
        if self._call is not None:
            self._call.output = b"".join(self._output).decode("utf-8", "replace")
            self._call.note(exit_code=exit_code)
            self._call.end(status="error" if failed else "ok")
        self._run.end(status=CANCELLED if self._was_cancelled else "error" if failed else "ok")
        self._store.flush()
        return summary

    def fail(self, error: BaseException) -> None:
        """Record that the program did not start, or that recording failed."""
        self._run.fail(error)

    def abandon(self, exit_code: int) -> None:
        """Record the end of a program that was ended from outside, as far as possible."""
        with contextlib.suppress(TreeringError):
            self.end(exit_code)
        self.close([])

    def close(self, problems: list[str]) -> None:
        """Record the problems of the run, and close."""
        try:
            for each in problems if self._is_recorded else ():
                self._run.message("warning", each)
            self._store.flush()
        except TreeringError as error:
            problems.append(f"and that could not be recorded: {error}")
        if not self._is_recorded:
            self._store.close()
