"""Peers of OTLP ingest: MLflow and Phoenix, each a server of its own with SQLite, given the same requests.

They are fetched into the scratch folder (or found in ``mlflow`` and ``phoenix`` below ``TREERING_PEERS``), or
left out where that fails. A span counts when it is a row in their database: Phoenix answers before it has
stored anything. They are slow, so they get fewer spans.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.otlp_work import SPANS_A_RUN, requests

if TYPE_CHECKING:
    from collections.abc import Sequence

MLFLOW = "3.17.2"
PHOENIX = "20.26.0"
CONNECTIONS = 8
PATIENCE_SECONDS = 180


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How a peer fared: spans in its database a second."""

    spans_per_second: float


def mlflow(scratch: Path, *, spans: int = 5_000) -> Peer | str:
    """MLflow's tracking server, or why there is none."""
    folder = scratch / "mlflow-data"
    folder.mkdir()
    database, port = folder / "mlflow.db", _free_port()
    command = ["server", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--backend-store-uri",
        f"sqlite:///{database}",
        "--default-artifact-root",
        str(folder / "files"),
    ]
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    try:
        program = _installed(scratch, "mlflow", f"mlflow=={MLFLOW}")
        headers = {"x-mlflow-experiment-id": "0"}
        return _measured(
            [program, *command], environment, port, database, spans, headers=headers, health="/health"
        )
    except (OSError, RuntimeError, sqlite3.Error, subprocess.SubprocessError) as error:
        return f"MLflow could not be run: {error}"


def phoenix(scratch: Path, *, spans: int = 2_000) -> Peer | str:
    """Phoenix, or why there is none."""
    folder = scratch / "phoenix-data"
    folder.mkdir()
    database, port = folder / "phoenix.db", _free_port()
    environment = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(_free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    try:
        program = _installed(scratch, "phoenix", f"arize-phoenix=={PHOENIX}")
        return _measured(
            [program, "serve"], environment, port, database, spans, headers={}, health="/healthz"
        )
    except (OSError, RuntimeError, sqlite3.Error, subprocess.SubprocessError) as error:
        return f"Phoenix could not be run: {error}"


def _installed(scratch: Path, name: str, requirement: str) -> str:
    program = Path(os.environ.get("TREERING_PEERS", scratch)) / name / "bin" / name
    if not program.exists():
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        folder = program.parents[1]
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
        wanted = [uv, "pip", "install", "-q", "--python", folder / "bin" / "python", requirement]
        subprocess.run(wanted, check=True, timeout=300)
    return str(program)


def _measured(
    command: Sequence[str],
    environment: dict[str, str],
    port: int,
    database: Path,
    spans: int,
    *,
    headers: dict[str, str],
    health: str,
) -> Peer:
    with (database.parent / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_healthy(port, health)
        work = requests(spans // SPANS_A_RUN)
        first = requests(SPANS_A_RUN, seed=99)
        _send(port, first, headers)
        _wait_for(database, SPANS_A_RUN * SPANS_A_RUN)
        begun = time.perf_counter()
        _send(port, work, headers)
        _wait_for(database, spans + SPANS_A_RUN * SPANS_A_RUN)
        return Peer(spans_per_second=spans / (time.perf_counter() - begun))
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # its own group: both start workers
        server.wait()


def _send(port: int, work: Sequence[bytes], headers: dict[str, str]) -> None:
    left = iter(work)
    lock = threading.Lock()

    def post() -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
            while True:
                with lock:
                    body = next(left, None)
                if body is None:
                    return
                _post(connection, body, headers)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for each in [pool.submit(post) for _ in range(CONNECTIONS)]:
            each.result()


def _post(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> None:
    while True:
        connection.request("POST", "/v1/traces", body, {"content-type": "application/x-protobuf"} | headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status == 200:
            return
        if answer.status not in (429, 503):
            raise RuntimeError(f"it answered {answer.status} {said[:200]!r}")
        time.sleep(0.2)


def _wait_until_healthy(port: int, path: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"it was not healthy after {PATIENCE_SECONDS} s")


def _wait_for(database: Path, spans: int) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
            ((count,),) = connection.execute("SELECT count(*) FROM spans")
        if count >= spans:
            return
        time.sleep(0.05)
    raise RuntimeError(f"{count} of {spans} spans were stored after {PATIENCE_SECONDS} s")


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
