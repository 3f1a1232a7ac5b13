"""The process that owns one server for one test run.

    python -m tests.servers.keeper postgres FOLDER

The run holds a lock on `FOLDER/run` for as long as it lives, and the kernel lets go of it when the run
ends, by whatever means. The keeper starts the server, reports its address as one line of JSON, and
then waits for that lock: getting it means that nobody is left to serve. It is detached from whoever
asked first, because under xdist that worker may end while others still need the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TextIO

from tests.servers.process import ServerFailed, ServerMissing, Started

_ATTEMPTS = 3
_STOP_SECONDS = 5.0


def main(kind: str, run: Path) -> None:
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as report:
            sys.stdout.write(report.read())
        sys.stdout.flush()
        os._exit(0)
    os.setsid()
    os.close(reader)
    _let_go_of_the_terminal()
    with (run / f"{kind}.keeper").open("w+b") as alive:
        fcntl.lockf(alive, fcntl.LOCK_EX)  # the run waits for this one when it closes
        with os.fdopen(writer, "w") as report:
            started = _start_and_report(kind, run, report)
        if started is None:
            return
        _wait_for_the_end_of(run)
        _stop(started)
        # Its other keepers are ending as well, and what the last one finds, it removes.
        shutil.rmtree(run, ignore_errors=True)


def _start_and_report(kind: str, run: Path, report: TextIO) -> Started | None:
    try:
        started = _start(kind, run)
    except ServerMissing as missing:
        json.dump({"missing": str(missing)}, report)
    except BaseException as error:  # noqa: BLE001  it is reported to the test that asked
        detail = str(error) if isinstance(error, ServerFailed) else traceback.format_exc()
        json.dump({"failed": f"{kind} did not start: {detail}"}, report)
    else:
        json.dump({"address": started.address, "keeper": os.getpid()}, report)
        return started
    return None


def _start(kind: str, run: Path) -> Started:
    server = importlib.import_module(f"tests.servers.{kind}")
    for attempt in range(1, _ATTEMPTS + 1):
        folder = run / kind / str(attempt)
        folder.mkdir(parents=True, mode=0o711)
        try:
            return server.start(folder)
        except ServerFailed:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _wait_for_the_end_of(run: Path) -> None:
    # A folder that is gone is a run that is over.
    with contextlib.suppress(FileNotFoundError), (run / "run").open("r+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)


def _stop(started: Started) -> None:
    # Nothing that these servers hold is wanted again, so none is asked to finish its work.
    started.process.send_signal(started.stop)
    try:
        started.process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        started.process.kill()
    for path in started.litter:
        path.unlink(missing_ok=True)


def _let_go_of_the_terminal() -> None:
    with Path(os.devnull).open("r+b") as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
