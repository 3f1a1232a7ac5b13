"""OTLP ingest and live streams through a server of its own process, as users run it.

50,000 spans (25 a run, about 1,350 bytes each) in requests of 500 are posted over 8 connections; a request
counts when it is acknowledged, which is after the commit and its fsync. Then the server is killed and
everything that was acknowledged is counted in the store. The peers, MLflow 3.17 and Phoenix 20.26, take spans
of the same kind over as many connections (`otlp_peers`); their other figures are quoted from an earlier run.
"""

from __future__ import annotations

import compileall
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import treering
from benchmarks import otlp_peers
from benchmarks.otlp_work import SPANS_A_RUN, requests
from benchmarks.report import Measurement, Section, at_least, at_most
from treering.core.query import SumQuery

SPANS = int(os.environ.get("TREERING_BENCH_SPANS", "50000"))
CONNECTIONS = 8
SUBSCRIBERS = 50
MLFLOW, PHOENIX = 1511, 122
PEER_RSS_MB, PEER_START_S, PEER_TIMELINE_MS, PEER_DISK = 434, 6.0, 16.0, 2229
MEGABYTE = 1_000_000


class Server:
    """A server process over a folder, and how long it took until it answered."""

    def __init__(self, folder: Path) -> None:
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "treering",
                "serve",
                "--no-search",
                "--port",
                "0",
                "--store",
                folder,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        said = self.process.stderr.readline() if self.process.stderr else ""
        found = re.search(r"http://\S+(?=;)", said)
        if found is None:
            raise RuntimeError(f"the server did not start: {said}")
        self.url = found[0]
        self.place = urlsplit(self.url).netloc
        while get(self.connect(), "/healthz")[0] != 200:
            pass
        self.start_seconds = time.perf_counter() - begun

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.place, timeout=120)

    @property
    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024 / MEGABYTE

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


def run(scratch: Path) -> Section:
    """Measure everything against one server, then kill it."""
    compileall.compile_dir(Path(treering.__file__).parent, quiet=1)  # as an installation does
    runs = SPANS // SPANS_A_RUN
    work = requests(runs)
    server = Server(scratch / "store")
    try:
        send(server, requests(20, seed=99))  # loads the price table
        before = server.cpu_seconds
        seconds = send(server, work)
        cpu_us = (server.cpu_seconds - before) / SPANS * 1e6
        rss = server.rss_mb
        timeline_ms = timelines(server)
        live_ms = _live(server)
    finally:
        server.kill()
    rate = SPANS / seconds
    (mlflow_rate, mlflow_note), (phoenix_rate, phoenix_note) = (
        _told(otlp_peers.mlflow(scratch), MLFLOW),
        _told(otlp_peers.phoenix(scratch), PHOENIX),
    )
    with treering.open(scratch / "store") as store:
        kinds = store.engine.sums(store.space, SumQuery(grain="day", by=("kind",)))
        kept = sum(each.events for each in kinds if str(each.group[0]).startswith("span."))
    expected = SPANS + 20 * SPANS_A_RUN
    if kept < expected:
        raise RuntimeError(f"{kept} of {expected} acknowledged spans are in the store after kill -9")
    plain = size_of(scratch / "store") / kept
    with treering.open(scratch / "store") as store:
        store.timeline.index()
    searchable = size_of(scratch / "store") / kept
    return Section(
        title="Traces",
        about=f"{SPANS:,} spans over HTTP into SQLite (`full`), acknowledged after fsync; the server was "
        "killed with SIGKILL afterwards, and every acknowledged span was there. What the notes say of peers "
        "is quoted from an earlier run on a workload of the same shape.",
        measurements=[
            least("durable spans/s, against MLflow", f"{rate:,.0f}", f"{mlflow_rate:,.0f}",
                  rate / mlflow_rate, 7, note=mlflow_note),
            least("durable spans/s, against Phoenix", f"{rate:,.0f}", f"{phoenix_rate:,.0f}",
                  rate / phoenix_rate, 80, note=phoenix_note),
            least("durable spans/s, against 10,000", f"{rate:,.0f}", "10,000", rate / 10_000, 1,
                  note=f"{cpu_us:.0f} us of CPU a span; machine load {os.getloadavg()[0]:.1f}"),
            most("disk per span, against 700 B", f"{plain:,.0f} B", "700 B", plain / 700, 1,
                 note=f"Phoenix {PEER_DISK:,} B, MLflow 4,440 B"),
            most("disk per span with full-text, against 900 B", f"{searchable:,.0f} B", "900 B",
                 searchable / 900, 1),
            most("server memory after the load, against 120 MB", f"{rss:.0f} MB", "120 MB", rss / 120, 1,
                 note=f"Phoenix {PEER_RSS_MB} MB and more"),
            most("start to healthy, against 1 s", f"{server.start_seconds:.2f} s", "1 s",
                 server.start_seconds, 1, note=f"MLflow {PEER_START_S:g} s and more, Phoenix 12 s"),
            most("one run's timeline over HTTP, p50, against 5 ms", f"{timeline_ms:.1f} ms", "5 ms",
                 timeline_ms / 5, 1, note=f"Phoenix {PEER_TIMELINE_MS:g} ms and more, MLflow 22 ms"),
            most(f"commit to subscriber, {SUBSCRIBERS} of them, p95, against 250 ms", f"{live_ms:.1f} ms",
                 "250 ms", live_ms / 250, 1, note="one of them takes nothing and delays nobody"),
        ],
    )  # fmt: skip


def _told(peer: otlp_peers.Peer | str, quoted: int) -> tuple[float, str]:
    """A peer's spans a second, measured or, where it could not be run, quoted."""
    if isinstance(peer, str):
        return quoted, f"quoted, not measured here ({peer})"
    return peer.spans_per_second, "run beside ours; in an earlier run " + f"{quoted:,}"


def send(server: Server, work: list[bytes]) -> float:
    """Seconds until all of it was acknowledged."""
    left = iter(work)
    lock = threading.Lock()

    def post() -> None:
        connection = server.connect()
        while True:
            with lock:
                body = next(left, None)
            if body is None:
                connection.close()
                return
            while True:
                connection.request("POST", "/v1/traces", body, {"content-type": "application/x-protobuf"})
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    break
                if answer.status != 503:
                    raise RuntimeError(f"the server answered {answer.status}")
                time.sleep(float(answer.headers["retry-after"]))

    begun = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for each in [pool.submit(post) for _ in range(CONNECTIONS)]:
            each.result()
    return time.perf_counter() - begun


def timelines(server: Server) -> float:
    """Milliseconds until the timeline of a run is there, p50."""
    connection = server.connect()
    _, listed = get(connection, "/runs?limit=50")
    taken: list[float] = []
    for each in listed["runs"] * 2:
        begun = time.perf_counter()
        _, page = get(connection, f"/runs/{each['id']}/timeline")
        taken.append((time.perf_counter() - begun) * 1000)
        if len(page["events"]) < SPANS_A_RUN:
            raise RuntimeError(f"run {each['id']} has {len(page['events'])} lines")
    return statistics.median(taken)


def _live(server: Server) -> float:
    """Milliseconds from sending a span to its arrival at each of many subscribers, p95."""
    stuck = server.connect()
    stuck.request("GET", "/live?after=0")  # and never read
    arrived: list[float] = []
    ready = threading.Barrier(SUBSCRIBERS + 1)
    marks = [f"mark-{number}" for number in range(20)]

    def follow() -> None:
        connection = server.connect()
        connection.request("GET", "/live?kinds=state,note,message,span")
        answer = connection.getresponse()
        answer.readline()
        ready.wait()
        waiting = dict.fromkeys(marks)
        while waiting:
            line = answer.readline()
            if not line.startswith(b"data: "):
                continue
            name = json.loads(line[6:]).get("name")
            if name in waiting:
                del waiting[name]
                arrived.append(time.perf_counter() - sent[name])

    sent: dict[str, float] = {}
    followers = [threading.Thread(target=follow) for _ in range(SUBSCRIBERS)]
    for each in followers:
        each.start()
    ready.wait()
    connection = server.connect()
    for number, mark in enumerate(marks):
        sent[mark] = time.perf_counter()
        connection.request("POST", "/v1/traces", _mark(mark, number), {"content-type": "application/json"})
        connection.getresponse().read()
        time.sleep(0.1)
    for each in followers:
        each.join()
    stuck.close()
    return statistics.quantiles(arrived, n=20)[18] * 1000


def _mark(name: str, number: int) -> bytes:
    now = time.time_ns()
    span = {"traceId": f"{now:032x}", "spanId": f"{number + 1:016x}", "name": name}
    span |= {"startTimeUnixNano": str(now), "endTimeUnixNano": str(now + 1000)}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, dict]:
    """The status and the content of an answer."""
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def size_of(folder: Path) -> int:
    """Bytes in the folder of a closed store."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def least(claim: str, ours: str, peer: str, ratio: float, limit: float, note: str = "") -> Measurement:
    """A row of the table."""
    target, met = at_least(ratio, limit)
    return Measurement(claim=claim, ours=ours, peer=peer, ratio=ratio, target=target, met=met, note=note)


def most(claim: str, ours: str, peer: str, ratio: float, limit: float, note: str = "") -> Measurement:
    """A row of the table."""
    target, met = at_most(ratio, limit)
    return Measurement(claim=claim, ours=ours, peer=peer, ratio=ratio, target=target, met=met, note=note)
