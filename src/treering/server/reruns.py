"""Reruns that a server makes, each call in a process of its own.

A rerun executes the entry point that the run was recorded with, blocks sockets and changes the current
folder, so it is ``treering rerun`` in another process, which is stopped with all that it started. Progress is
read from the store, where each rerun is a run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from treering.core.clock import to_datetime
from treering.core.ids import new_id
from treering.errors import Conflict, NotFound
from treering.replays.comparison import list_reruns
from treering.runs.run import RUNNING

if TYPE_CHECKING:
    from treering.store import Store

_MAX_JOBS: Final = 50
_MAX_ERROR: Final = 4000
_STOP_SECONDS: Final = 5.0


class RerunOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to rerun: the first call that is made for real, and variants of model and system prompt."""

    from_step: Annotated[int, Meta(ge=1)]
    model: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()
    prompt: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    repeat: Annotated[int, Meta(ge=1, le=100)] = 1
    verify: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None


class RerunJob(Struct, frozen=True, kw_only=True):
    """Reruns that this server makes. ``done`` of ``total`` have ended."""

    id: str
    run: str
    status: Literal["running", "done", "failed", "cancelled"]
    total: int
    done: int
    started_at_us: int
    group: str | None = None
    error: str | None = None

    @property
    def started_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.started_at_us)


class RerunJobs:
    """The reruns that this process has started."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def start(self, store: Store, run: str, order: RerunOrder, environment: Mapping[str, str]) -> _Job:
        """Start reruns of a run."""
        with self._lock:
            if any(each.is_running for each in self._jobs.values() if each.run == run):
                raise Conflict(f"run {run!r} is being rerun already; wait for it, or cancel it")
            job = _Job(store, run, order, environment)
            self._jobs[job.id] = job
            for old in list(self._jobs)[:-_MAX_JOBS]:
                if not self._jobs[old].is_running:
                    del self._jobs[old]
        return job

    def of(self, space: str, run: str) -> Sequence[_Job]:
        """The reruns of a run, newest first."""
        return [each for each in reversed(self._jobs.values()) if (each.space, each.run) == (space, run)]

    def get(self, space: str, id: str) -> _Job:
        """Return one."""
        job = self._jobs.get(id)
        if job is None or job.space != space:
            raise NotFound(f"rerun {id!r} not found; this server has not started it, or it is long over")
        return job

    def stop(self) -> None:
        """Stop all: the server ends."""
        for job in self._jobs.values():
            job.cancel()


class _Job:
    """One ``treering rerun`` in a process of its own."""

    def __init__(self, store: Store, run: str, order: RerunOrder, environment: Mapping[str, str]) -> None:
        self.id = new_id()
        self.run = run
        self.space = store.space
        self._total = max(len(order.model), 1) * max(len(order.prompt), 1) * order.repeat
        self._started_at_us = store.clock.now_us()
        self._is_cancelled = False
        self._group: str | None = None
        self._error: str | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="treering-rerun-order-")
        command = [sys.executable, "-m", "treering", "rerun", run, "--from", str(order.from_step)]
        for model in order.model:
            command += ["--model", model]
        for number, prompt in enumerate(order.prompt):
            path = Path(self._folder.name, f"prompt-{number}.txt")
            path.write_text(prompt, encoding="utf-8")
            command += ["--prompt-file", str(path)]
        for name, value in order.parameters.items():
            command += ["--set", f"{name}={msgspec.json.encode(value).decode()}"]
        if order.verify is not None:
            command += ["--verify", order.verify]
        command += ["-n", str(order.repeat), "--namespace", store.space, "--json"]
        self._process = subprocess.Popen(  # noqa: S603 - what an admin ordered
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._wait, name="treering-rerun", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def _wait(self) -> None:
        out, error = self._process.communicate()
        if self._process.returncode == 0:
            # What the agent prints comes before; the comparison is the last thing that is printed.
            start = out.find(b"{\n") if not out.startswith(b"{") else 0
            with suppress(msgspec.DecodeError, AttributeError):
                self._group = msgspec.json.decode(out[max(start, 0) :]).get("group")
        elif not self._is_cancelled:
            self._error = error.decode("utf-8", "replace").strip()[-_MAX_ERROR:] or "it ended without a word"
        self._folder.cleanup()

    def cancel(self) -> None:
        """Stop it, and what it started."""
        if not self.is_running:
            return
        self._is_cancelled = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._thread.join(_STOP_SECONDS)
        if self.is_running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._thread.join(_STOP_SECONDS)

    def describe(self, store: Store) -> RerunJob:
        """Return how far it is."""
        is_running = self.is_running
        status: Literal["running", "done", "failed", "cancelled"] = "running"
        if not is_running:
            status = "cancelled" if self._is_cancelled else "done" if self._error is None else "failed"
        done = sum(
            each.status != RUNNING
            for each, _ in list_reruns(store, self.run)
            if each.started_at_us >= self._started_at_us
        )
        return RerunJob(
            id=self.id,
            run=self.run,
            status=status,
            total=self._total,
            done=min(done, self._total),
            started_at_us=self._started_at_us,
            group=self._group,
            error=self._error,
        )
