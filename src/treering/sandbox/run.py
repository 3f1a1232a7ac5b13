"""One run in a sandbox: a program, and everyone who listens to it.

Each line that it writes goes to the caller, into the session log, and (where there is a store) into the
timeline: as messages, tool calls and tokens if the format is known, else as the output of one tool call.
**Invariant:** the program's output comes first; a listener that fails is left out from then on and named in
the run's warning, and never ends the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
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
from treering.sandbox.profiles import AgentProfile, StreamFormat
from treering.store import Store

if TYPE_CHECKING:
    from treering.importers.streams import Stream, StreamSummary
    from treering.runs.run import Run
    from treering.runs.span import Span


# -----------------------------------------------------------------------------------------------------------
# A program that runs in a sandbox: in a process group of its own, its output passed on line by line.
#
# **Invariant:** whoever listens gets every byte once and in order, and the program is not slowed down by more
# than what the listener itself takes.


Listener = Callable[[str, bytes], None]
"""Gets ``stdout`` or ``stderr`` and one line, with its end."""

_LONGEST: Final = 1 << 20
_GRACE_SECONDS: Final = 5.0
_LINGER_SECONDS: Final = 2.0
_ROUNDS: Final = 10


class Program:
    """A started program."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], listener: Listener
    ) -> None:
        if not command:
            raise InvalidInput("there is no command to run; give one behind --")
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
                f"there is no program {command[0]!r} on the PATH; install it, or give its path"
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
        """Its exit code, once it and all its output are through; a signal's number is negative.

        What it started and left behind may hold its output open; that is not waited for.
        """
        code = self._process.wait()
        for reader in self._readers:
            seen = -1
            while reader.is_alive() and seen != self._lines:
                seen = self._lines
                reader.join(_LINGER_SECONDS)
        return code

    def stop(self) -> None:
        """Hold it and its children where they are."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end, and after a while make it."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        self._signal(signal.SIGKILL)  # also what it started and left behind
        self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                with self._lock:
                    self._lines += 1
                    self._listener(name, line)


def end_all_of(home: Path) -> None:
    """End what programs with this home started and left behind, wherever it went to.

    It is known by its environment, which Linux shows; elsewhere there is nothing to look at.
    """
    mark = os.fsencode(f"HOME={home}")
    for _ in range(_ROUNDS):  # they may have started more meanwhile
        if not sum(_end_if(int(entry.name), mark) for entry in Path("/proc").glob("[0-9]*")):
            return


def _end_if(number: int, mark: bytes) -> bool:
    if number == os.getpid():
        return False
    try:
        process = os.pidfd_open(number)  # from here on the number cannot come to mean another one
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


# -----------------------------------------------------------------------------------------------------------
# The session log: one file of JSON lines per sandbox session, for people and programs that read along.
#
# ``{tag}_{provider}_{sandbox_id}_{agent}_{timestamp}.jsonl`` begins with one ``_meta`` line, has a
# ``_prompt`` line for every run, everything that the program wrote as it came, and ends with
# ``_sessionEnd``. A payload that is a JSON object stands there byte for byte; a line that is none is
# wrapped (``{"_stdout": "..."}``). **Invariant:** whoever logs never waits for the disk, and never fails
# because of it: what goes wrong is said once, as a warning.


_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS: Final = frozenset({"_meta", "_prompt", "_sessionEnd"})


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a log."""

    tag: str
    provider: str
    agent: str
    model: str | None
    sandbox_id: str
    timestamp: str


class SessionLog:
    """One log, written by a thread of its own."""

    def __init__(self, folder: Path, meta: SessionMeta, *, clock: Clock | None = None) -> None:
        stamp = re.sub("[:.]", "-", meta.timestamp)
        name = f"{meta.tag}_{meta.provider}_{meta.sandbox_id}_{meta.agent}_{stamp}"
        self.path = folder / f"{file_name(name)}.jsonl"
        self._clock = clock or SystemClock()
        self._queue: SimpleQueue[bytes | Event | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="treering-session-log", daemon=True)
        self._is_open = True
        self._failure: str | None = None
        self._has_complained = False
        self._queue.put(_line({"_meta": meta}))
        self._thread.start()

    def prompt(self, text: str) -> None:
        """A run begins."""
        self._queue.put(_line({"_prompt": {"text": text}}))

    def payload(self, data: bytes, *, source: str = "_stdout") -> None:
        """A line that the program wrote."""
        line = data.rstrip(b"\r\n")
        if line:
            self._queue.put(_raw(line, source) + b"\n")

    def flush(self) -> None:
        """Return when everything so far is in the file."""
        if self._is_open:
            done = Event()
            self._queue.put(done)
            done.wait()
            self._complain()

    def close(self) -> None:
        """Write the last line and let the file go. Closing twice changes nothing."""
        if self._is_open:
            self._is_open = False
            self._queue.put(_line({"_sessionEnd": {"timestamp": iso_of(self._clock.now_us())}}))
            self._queue.put(None)
            self._thread.join()
            self._complain()

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
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    file = os.open(self.path, _FLAGS, 0o600)
                _write_all(file, item)
            except OSError as error:
                self._failure = str(error)
        if file is not None:
            os.close(file)

    def _complain(self) -> None:
        if self._failure is not None and not self._has_complained:
            self._has_complained = True
            warnings.warn(
                f"the session log {self.path} cannot be written: {self._failure}",
                RuntimeWarning,
                stacklevel=3,
            )


def iso_of(ts_us: int) -> str:
    """A time as the logs have it: ISO 8601, milliseconds, Z."""
    return f"{to_iso(ts_us // 1000 * 1000).removesuffix('+00:00')[:23].ljust(19)}Z"


def _raw(line: bytes, source: str) -> bytes:
    """A payload as it stands in the log: itself, if it is a JSON object of the program's own."""
    if source == "_stdout" and line.startswith(b"{"):
        try:
            value: Any = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        else:
            if not _OURS & value.keys():
                return line
    return msgspec.json.encode({source: line.decode("utf-8", "replace")})


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


# -----------------------------------------------------------------------------------------------------------

Output = Callable[[str, bytes], None]
"""Gets ``stdout`` or ``stderr`` and one line."""

_KEPT: Final = 64 << 20
_SHOWN: Final = 1 << 20


class Running:
    """A run that has begun. `finish` waits for it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        profile: AgentProfile,
        prompt: str | None,
        log: SessionLog,
        recorder: Recorder,
        on_output: Output | None,
    ) -> None:
        self.prompt = prompt
        self.failures: list[str] = []
        self._output: list[bytes] = []
        self._size = 0
        self._log = log
        self._recorder: Recorder | None = recorder
        self._on_output = on_output
        log.prompt(prompt if prompt is not None else " ".join(command))
        recorder.begin(list(command), prompt, profile.speaks(list(command)))
        try:
            self.program = Program(command, folder=folder, environment=environment, listener=self._hear)
        except BaseException as error:
            recorder.fail(error)
            recorder.close([])
            raise

    def finish(self) -> int:
        """Wait until the program is through; its exit code."""
        return self.program.wait()

    @property
    def output(self) -> str:
        """What it wrote to stdout, at most the first 64 MB."""
        return b"".join(self._output).decode("utf-8", "replace")

    def _hear(self, source: str, line: bytes) -> None:
        if source == "stdout" and self._size < _KEPT:
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
                self._recorder.take(source, line)
            except Exception as error:  # noqa: BLE001 - nor the timeline
                self.failures.append(f"the timeline could not be recorded: {error}")
                self._recorder.fail(error)
                self._recorder = None


class Recorder:
    """Reads along what one run says, and writes it into the timeline of a store, if there is one."""

    def __init__(
        self,
        store: Store | None,
        *,
        agent: str,
        model: str | None,
        tag: str,
        meta: Mapping[str, Any],
        before: Mapping[str, Usage] | None,
        goes_on: bool,
    ) -> None:
        self._is_kept = store is not None
        self._store = store or open_store("memory:")
        self._model = model
        self._before = before
        self._goes_on = goes_on
        self._run: Run = self._store.run(agent, tags=(tag,), meta=meta)
        self._stream: Stream | None = None
        self._call: Span | None = None
        self._kept: list[bytes] = []
        self._size = 0

    @property
    def run_id(self) -> str | None:
        """The run in the timeline, if it is kept."""
        return self._run.id if self._is_kept else None

    def begin(self, command: list[str], prompt: str | None, format: StreamFormat | None) -> None:
        """The program is about to start."""
        self._run.start()
        if prompt is not None:
            self._run.message("user", prompt)
        if format is None:
            self._call = self._run.tool(Path(command[0]).name, input=command).start()
            return
        from treering.importers.streams import Stream

        self._stream = Stream(
            self._run, format, model=self._model, before=self._before, is_resumed=self._goes_on
        )

    def take(self, source: str, line: bytes) -> None:
        """One line of output."""
        if self._stream is not None:
            if source == "stdout":
                self._stream.take(line)
        elif self._size < _SHOWN:
            self._kept.append(line)
            self._size += len(line)

    def end(self, exit_code: int) -> StreamSummary | None:
        """The program is through; everything is durable when this returns."""
        summary = None if self._stream is None else self._stream.finish()
        failed = exit_code != 0 or (summary is not None and summary.is_error)
        if self._call is not None:
            self._call.output = b"".join(self._kept).decode("utf-8", "replace")
            self._call.note(exit_code=exit_code)
            self._call.end(status="error" if failed else "ok")
        self._run.end(status="error" if failed else "ok")
        self._store.flush()
        return summary

    def fail(self, error: BaseException) -> None:
        """It did not even start, or can be recorded no further."""
        self._run.fail(error)

    def give_up(self, exit_code: int) -> None:
        """The program was ended from outside; what it did until then is kept, as well as that goes."""
        with contextlib.suppress(TreeringError):
            self.end(exit_code)
        self.close([])

    def close(self, problems: list[str]) -> None:
        """Note what went wrong around the run, and let go."""
        try:
            for each in problems if self._is_kept else ():
                self._run.message("warning", each)
            self._store.flush()
        except TreeringError as error:
            problems.append(f"and that could not be recorded: {error}")
        if not self._is_kept:
            self._store.close()
