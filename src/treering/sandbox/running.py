"""One run in a sandbox: a program, and everyone who listens to it.

Each line that it writes goes to the caller, into the session log, and (where there is a store) into the
timeline: as messages, tool calls and tokens if the format is known, else as the output of one tool call.
**Invariant:** the program's output comes first; a listener that fails is left out from then on and named in
the run's warning, and never ends the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from treering.api import open as open_store
from treering.core.batch import Usage
from treering.errors import TreeringError
from treering.sandbox.processes import Program
from treering.sandbox.profiles import AgentProfile, StreamFormat
from treering.sandbox.session_log import SessionLog
from treering.store import Store

if TYPE_CHECKING:
    from treering.importers.streams import Stream, StreamSummary
    from treering.views.recording.runs import Run
    from treering.views.recording.spans import Span

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
