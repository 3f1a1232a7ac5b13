"""A million: what lists, search, reports, statistics and the dashboard cost in one space of growing size.

A store of N threads has N runs and 10 N events (a run is an agent span, three calls of models, three of
tools, its end and its entry in the list; a thread is a checkpoint with two messages), N/10 memory documents,
and N/200 snapshots and schedules. They are written through the ordinary write path, a few hundred threads in
a commit, and spread over 90 days. Building takes long, so stores are kept in a folder (`FOLDER`), and one
that was interrupted is continued.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec
from playwright.sync_api import sync_playwright
from tests.servers.fleet import opened
from tests.servers.postgres import PostgresServer
from tests.web import tools

import treering
from benchmarks import dashboard
from benchmarks.postgres import make_durable
from benchmarks.report import Measurement, Section, at_most
from treering.core.batch import ABSENT, Draft, Usage
from treering.core.clock import ManualClock
from treering.core.content import Content
from treering.core.ids import IdSource
from treering.core.query import ListQuery
from treering.runs.run import RunInfo, run_writer, write_listing, write_state
from treering.threads.checkpoint import CheckpointRecord
from treering.threads.writer import CheckpointWriter, ListChange, NewCheckpoint, encode_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treering.store import Store

FOLDER = Path(os.environ.get("TREERING_BENCH_MILLION", "/tmp/million"))
SIZES = tuple(map(int, os.environ.get("TREERING_BENCH_SIZES", "10000,100000,1000000").split(",")))
BUILD_SECONDS = float(os.environ.get("TREERING_BENCH_BUILD_SECONDS", "inf"))
POSTGRES_SIZES = tuple(map(int, os.environ.get("TREERING_BENCH_POSTGRES", "10000,100000,1000000").split(",")))
PER_COMMIT = 250
DAYS = 90
DAY_US = 86_400_000_000
END_US = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1e6)
AGENTS = ("planner", "coder", "reviewer", "researcher", "support", "billing", "writer", "tester")
MODELS = ("gpt-5", "gpt-5-mini", "claude-sonnet-4-5", "gemini-2.5-pro")
TOOLS = ("search_docs", "read_file", "run_tests", "refund", "send_mail", "query")
TEAMS = ("", "", "", "acme", "globex")
"""Namespaces of threads and runs."""
WORDS = [
    "".join(Random(number).choices("abcdefghijklmnopqrstuvwxyz", k=Random(number).randint(3, 9)))
    for number in range(20_000)
]


def build(store: Store, count: int) -> int:
    """Fill a store up to ``count`` threads and runs, from where it is; return how many there are.

    It stops after `BUILD_SECONDS`. The next run goes on from there.
    """
    done = store.state.get("million/done", 0)
    started, first = time.perf_counter(), done
    while done < count and time.perf_counter() - started < BUILD_SECONDS:
        draft = Draft(store.space)
        writer = CheckpointWriter(store.engine, store.space)
        for number in range(done, min(done + PER_COMMIT, count)):
            _add(draft, writer, number, count)
        store.engine.commit(draft.batch())
        done = min(done + PER_COMMIT, count)
        store.state.set("million/done", done)
        if done % 10_000 < PER_COMMIT:
            rate = (done - first) / (time.perf_counter() - started)
            print(f"{done:,} of {count:,}, {rate:.0f} threads/s", file=sys.stderr, flush=True)
    return done


def _add(draft: Draft, writer: CheckpointWriter, number: int, count: int) -> None:
    """Add a thread with a checkpoint and a run of ten events."""
    random = Random(number)
    at_us = END_US - DAYS * DAY_US + number * (DAYS * DAY_US // count)
    agent, team = AGENTS[min(int(random.expovariate(0.6)), 7)], TEAMS[number % len(TEAMS)]
    thread = f"{team or 'chat'}-{number:07}"
    ids = IdSource(ManualClock(at_us))
    status = random.choices(("ok", "error", "crashed"), (96, 3.8, 0.2))[0]
    record = CheckpointRecord(
        id="ckpt_" + ids.next(), thread=thread, namespace=team, parent=None, step=1, created_at_us=at_us,
        lists={}, state={},
    )  # fmt: skip
    said = [{"role": "user", "content": text(random, 12)}, {"role": "assistant", "content": text(random, 20)}]
    change = ListChange(contents=encode_items(said), list_id=f"{ids.next()}")
    record = writer.put(draft, NewCheckpoint(record=record, lists={"messages": change}))
    writer.put_head(draft, record, expect=ABSENT, first_us=at_us, updated_us=at_us)
    took_us = 0
    info = RunInfo(
        id=ids.next(), agent=agent, thread=thread, namespace=team, started_at_us=at_us, status=status,
        ended_at_us=at_us, tags=("nightly",) if number % 20 == 0 else (),
    )  # fmt: skip
    spans = run_writer(info)
    root = ids.next()
    for step in range(3):
        for kind in ("llm", "tool"):
            duration_us = round(random.lognormvariate(13.5 if kind == "llm" else 11, 0.7))
            is_last = step == 2 and kind == "tool"
            is_llm = kind == "llm"
            spans.write_span(
                draft,
                id=ids.next(), kind=kind, name=MODELS[number % 4] if is_llm else random.choice(TOOLS),
                ts_us=at_us + took_us, duration_us=duration_us,
                status="error" if is_last and status == "error" else "ok",
                parent=root, agent=agent, model=MODELS[number % 4] if is_llm else None,
                usage=Usage(input=random.randint(200, 4000), output=random.randint(20, 900)) if is_llm
                else None,
                cost_nanos=random.randint(100_000, 9_000_000) if is_llm else None,
                currency="USD" if is_llm else None,
                output=Content("text", text(random, 8).encode()),
                data={"first_token_us": duration_us // 5} if is_llm else None,
            )  # fmt: skip
            took_us += duration_us
    spans.write_span(
        draft, id=root, kind="agent", name=agent, ts_us=at_us, duration_us=took_us, status="ok",
        parent=None, agent=agent,
    )  # fmt: skip
    write_listing(draft, info)
    write_state(draft, msgspec.structs.replace(info, ended_at_us=at_us + took_us))


def build_others(store: Store, count: int, scratch: Path) -> None:
    """Add what is not a thread or a run: memory documents, schedules, snapshots, and one long thread."""
    random = Random(count)
    made = store.state.get("million/others", {})
    done = made.get("memory", 0)
    while done < count // 10:
        store.memory.save_many(
            {"id": f"notes/{number:06}", "content": text(random, 15),
             "metadata": {"tags": ["style"] if number % 50 == 0 else [], "auto_load": number % 100 == 0}}
            for number in range(done, min(done + 500, count // 10))
        )  # fmt: skip
        done = made["memory"] = min(done + 500, count // 10)
        store.state.set("million/others", made)
    few = count // 200
    for number in range(made.get("schedules", 0), few):
        task = store.schedules.cron("0 8 * * *", prompt=text(random, 5), channel="mail")
        if number % 3 == 0:
            store.schedules.cancel_task(task.id)
    folder = scratch / "folder"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(made.get("snapshots", 0), few):
        (folder / "report.md").write_text(f"report {number}", encoding="utf-8")
        store.workspace.snapshot(folder, note=f"report {number}")
    thread = store.thread("long")
    for number in range(made.get("steps", 0), few):
        thread.append({"role": "user", "content": f"step {number}"})
    store.state.set("million/others", {"memory": done, "schedules": few, "snapshots": few, "steps": few})


def text(random: Random, count: int) -> str:
    """Words, as unevenly as people use them."""
    return " ".join(WORDS[min(int(random.paretovariate(0.6)), len(WORDS)) - 1] for _ in range(count))


PAGE = 50
TURNS = 9
SORTED = "runs by"
MOST_SORTED = 10_000
"""Runs up to which sorting by cost, tokens and duration is measured: it reads all runs."""
MOST_SEARCHED = 150_000
"""Runs up to which search is measured: seven spans of each make a million."""
LATE = 0.9
"""How far behind the newest a late page begins, as a share of all."""
IN_PROCESS_MS, HTTP_MS = 20, 50


class Question(NamedTuple):
    """A page of a list, as Python and REST are asked for it; the cursor is that of a late page."""

    ask: Callable[[Store, str | None], Any]
    path: str
    late: Callable[[Store], str | None]


def run(scratch: Path) -> Section:
    """Build the stores that are not there, and measure all of them."""
    sqlite: dict[int, dict[str, Took]] = {}
    for size in SIZES:
        url = str(FOLDER / f"sqlite-{size}")
        done = _built(url, size, scratch / f"sqlite-{size}")
        sqlite[done] = measure(url, done)
    postgres: dict[int, dict[str, Took]] = {}
    with opened() as fleet:
        server = PostgresServer(**fleet.address("postgres"))
        make_durable(server.url("postgres"))
        for size in POSTGRES_SIZES:
            url = server.create_database()
            done = _built(url, size, scratch / f"postgres-{size}")
            postgres[done] = measure(url, done)
    rows = [*rows_of("SQLite", sqlite), dashboard_row(FOLDER / f"sqlite-{max(SIZES)}", max(sqlite))]
    return section([*rows, *rows_of("PostgreSQL", postgres)])


def section(rows: list[Measurement]) -> Section:
    """Return the section of the results."""
    return Section(
        title="A million",
        about=f"{' '.join((__doc__ or '').split())} Times are CPU time of everybody who works on a question "
        f"(the process, the server, the backends of the database), the mean of {TURNS} turns on warm caches: "
        "the machine is shared, and its clock shows what others do. A page has 50 entries; a late page is "
        f"behind {LATE:.0%} of a list.",
        measurements=rows,
    )


def _built(url: str, size: int, scratch: Path) -> int:
    with treering.open(url) as store:
        done = build(store, size)
        build_others(store, done, scratch)
    return done


def questions() -> dict[str, Question]:
    """Every list with every filter and sort that REST, the command line and the dashboard offer."""
    asked: dict[str, Question] = {}
    week_us = 7 * DAY_US
    runs: dict[str, dict[str, Any]] = {
        "all": {}, "agent": {"agent": "reviewer"},
        "status ok": {"status": "ok"}, "failed": {"status": "error"},
        "running": {"status": "running"}, "crashed": {"status": "crashed"},
        "agent and status": {"agent": "planner", "status": "error"}, "thread": {"thread": "chat-0000000"},
        "tag": {"tag": "nightly"}, "last week": {"since_us": END_US - week_us},
        "an old week": {"since_us": END_US - 60 * DAY_US, "until_us": END_US - 60 * DAY_US + week_us},
    }  # fmt: skip
    for name, given in runs.items():
        asked[f"runs, {name}"] = Question(
            lambda store, cursor, given=given: store.runs.page(first=PAGE, cursor=cursor, **given),
            f"/runs?{urlencode(given)}",
            lambda store, given=given: store.runs.page(first=1, **{"until_us": _late_us(), **given}).cursor,
        )
    asked["runs of a team"] = Question(
        lambda store, cursor: store.runs.in_namespace("acme").page(first=PAGE, cursor=cursor),
        "/runs?namespace=acme",
        lambda store: store.runs.in_namespace("acme").page(first=1, until_us=_late_us()).cursor,
    )
    for sort in ("cost", "tokens", "duration"):
        asked[f"runs by {sort}"] = Question(
            lambda store, _, sort=sort: store.runs.top(sort, first=PAGE), f"/runs?sort={sort}", _no_cursor
        )
    threads: dict[str, dict[str, Any]] = {
        "all": {"namespace": None}, "of a team": {"namespace": "acme"},
        "prefix": {"namespace": "", "prefix": "chat-00001"},
        "containing": {"namespace": None, "containing": "77"},
    }  # fmt: skip
    for name, given in threads.items():
        asked[f"threads, {name}"] = Question(
            lambda store, cursor, given=given: store.thread_page(first=PAGE, cursor=cursor, **given),
            f"/threads?{urlencode({key: value for key, value in given.items() if value is not None})}",
            lambda store, given=given: (
                store.engine.list_refs(
                    store.space,
                    ListQuery(list="threads", namespace=given["namespace"], until_us=_late_us()),
                    limit=1,
                ).cursor
            ),
        )
    asked["checkpoints of a thread"] = Question(
        lambda store, cursor: list(store.thread("long").history(last=PAGE, after=cursor)),
        "/threads/long/history?",
        lambda store: (
            next(islice(store.thread("long").history(), store.thread("long").head.step * 9 // 10, None)).id
        ),
    )
    memory: dict[str, dict[str, Any]] = {
        "all": {}, "prefix": {"prefix": "notes/0000"}, "tag": {"tags": ["style"]},
        "auto-load": {"auto_load": True},
    }  # fmt: skip
    for name, given in memory.items():
        path = urlencode({"tag" if key == "tags" else key: value for key, value in given.items()}, doseq=True)
        asked[f"memory, {name}"] = Question(
            lambda store, cursor, given=given: store.memory.page(first=PAGE, cursor=cursor, **given),
            f"/memory?{path}".replace("True", "true"),
            lambda store: f"notes/{int(store.state.get('million/done', 0) * LATE / 10):06}",
        )
    for name, everything in (("due", False), ("all", True)):
        asked[f"schedules, {name}"] = Question(
            lambda store, cursor, everything=everything: store.schedules.task_page(
                first=PAGE, cursor=cursor, all=everything
            ),
            f"/schedules?all={str(everything).lower()}",
            lambda store, everything=everything: _walked(store.schedules.task_page, all=everything),
        )
    asked["snapshots"] = Question(
        lambda store, cursor: store.workspace.snapshot_page(first=PAGE, cursor=cursor),
        "/snapshots?",
        lambda store: _walked(store.workspace.snapshot_page),
    )
    return asked


def _late_us() -> int:
    return END_US - round(LATE * DAYS) * DAY_US


def _no_cursor(_: Store) -> None:
    return None


def _walked(page: Callable[..., Any], **given: Any) -> str | None:
    """Return the cursor behind nine of ten pages."""
    cursors: list[str] = []
    cursor = None
    while (cursor := page(first=PAGE, cursor=cursor, **given).cursor) is not None:
        cursors.append(cursor)
    return cursors[int(len(cursors) * LATE)] if cursors else None


def searches(store: Store, database: str) -> dict[str, Took]:
    """Index what is not indexed yet, and search for common and rare words."""
    store.timeline.index()
    wanted = {
        "three words, one very common": f"{WORDS[3]} {WORDS[700]} {WORDS[9000]}",
        "two words": f"{WORDS[50]} {WORDS[400]}",
        "a common word": WORDS[2],
        "a rare word": WORDS[15_000],
    }
    return {
        f"search {name}": _took(lambda words=words: store.timeline.search(words), TURNS, database=database)
        for name, words in wanted.items()
    }


class Took(NamedTuple):
    """The mean CPU time of a question in milliseconds, of everybody who works on it, and its median time."""

    cpu: float
    wall: float


def measure(url: str, size: int) -> dict[str, Took]:
    """Ask everything in process (`py`) and over HTTP."""
    found: dict[str, Took] = {}
    asked = questions()
    cursors: dict[str, str | None] = {}
    with treering.open(url) as store:
        database = urlsplit(url).path.lstrip("/") if "://" in url else ""
        for name, each in asked.items():
            if name.startswith(SORTED) and size > MOST_SORTED:
                cursors[name] = None
                continue
            turns = 1 if name.startswith(SORTED) else TURNS
            found[f"py {name}"] = _took(lambda each=each: each.ask(store, None), turns, database=database)
            cursors[name] = each.late(store)
            if cursors[name] is not None:
                found[f"py {name}, late"] = _took(
                    lambda each=each, name=name: each.ask(store, cursors[name]), turns, database=database
                )
        for by in ("model", "tool", "agent", "run"):
            found[f"report performance by {by}"] = _took(
                lambda by=by: store.performance.report(by), 3, database=database
            )
        for by in ("day", "agent", "model"):
            found[f"report cost by {by}"] = _took(
                lambda by=by: store.cost.of_days(by=by), 3, database=database
            )
        if size <= MOST_SEARCHED:
            found |= searches(store, database)
        found["stats exact"] = _took(lambda: store.stats(exact=True), 1, database=database)
        found["stats"] = _took(lambda: store.stats().rows, TURNS, database=database)
        total = store.performance.report("model").total
        if total.calls != 3 * size:
            raise RuntimeError(f"the report counts {total.calls:,} calls of models, not {3 * size:,}")
    with served(url) as (get, pid):
        for name, each in asked.items():
            if name.startswith(SORTED):
                continue  # as in process
            path = f"{each.path}&limit={PAGE}"
            found[f"http {name}"] = _took(lambda path=path: get(path), TURNS, pid=pid, database=database)
            if (cursor := cursors[name]) is not None:
                late = f"{path}&{urlencode({'cursor': cursor})}"
                found[f"http {name}, late"] = _took(
                    lambda late=late: get(late), TURNS, pid=pid, database=database
                )
    return found


def _took(work: Callable[[], object], turns: int, *, pid: int = 0, database: str = "") -> Took:
    """Do something several times, warmed up; ``pid`` and ``database`` name who else works on it."""
    if turns > 1:
        work()
    walls: list[float] = []
    before = _cpu_seconds(pid, database)
    for _ in range(turns):
        started = time.perf_counter()
        work()
        walls.append((time.perf_counter() - started) * 1e3)
    return Took((_cpu_seconds(pid, database) - before) / turns * 1e3, median(walls))


def _cpu_seconds(pid: int, database: str) -> float:
    """CPU time of this process, of a server, and of the backends of a PostgreSQL database."""
    total = time.process_time()
    for stat in Path("/proc").glob("[0-9]*/stat") if database else [Path(f"/proc/{pid}/stat")] if pid else []:
        try:
            if database and stat.parent.name != str(pid):
                title = (stat.parent / "cmdline").read_bytes()
                if not title.startswith(b"postgres:") or database.encode() not in title:
                    continue
            fields = stat.read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


@contextmanager
def served(url: str) -> Iterator[tuple[Callable[[str], bytes], int]]:
    """A server over a store: what reads a path from it over one connection, and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "treering", "serve", "--no-search", "--port", "0", "--store", url],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.stderr.readline() if process.stderr else ""
        address = re.search(r"http://\S+(?=;)", said)
        if address is None:
            raise RuntimeError(f"the server did not start: {said}")
        connection = http.client.HTTPConnection(urlsplit(address[0]).netloc, timeout=300)

        def get(path: str) -> bytes:
            connection.request("GET", path)
            reply = connection.getresponse()
            body = reply.read()
            if reply.status != 200:
                raise RuntimeError(f"GET {path}: {reply.status} {body[:300]!r}")
            return body

        yield get, process.pid
    finally:
        process.terminate()
        process.wait()


def rows_of(engine: str, took: dict[int, dict[str, Took]]) -> list[Measurement]:
    """Return the rows of one database."""
    largest = max(took)
    at_largest = took[largest]
    rows: list[Measurement] = []
    for prefix, limit, where in (("py ", IN_PROCESS_MS, "in process"), ("http ", HTTP_MS, "over HTTP")):
        for is_late in (False, True):
            pages = {
                name.removeprefix(prefix): each
                for name, each in at_largest.items()
                if name.startswith(prefix) and name.endswith(", late") == is_late and SORTED not in name
            }
            slow = sorted(pages, key=lambda name: -pages[name].cpu)
            over = [name for name in slow if pages[name].cpu > limit]
            shown = ", ".join(f"{name} {pages[name].cpu:.1f}" for name in slow[: max(len(over), 3)])
            page = "late pages" if is_late else "first pages"
            rows.append(
                _row(
                    f"{engine}, {largest:,} runs: {page} {where}, CPU, slowest of {len(pages)} lists",
                    pages[slow[0]].cpu,
                    limit,
                    note=f"{len(over)} over it; the slowest: {shown}; median list: CPU "
                    f"{median(each.cpu for each in pages.values()):.1f}, p50 of the time "
                    f"{median(each.wall for each in pages.values()):.1f}; the slowest p50 of the time "
                    f"{max(each.wall for each in pages.values()):.0f}",
                )
            )
    for small, large in pairwise(sorted(took)):
        growth = {
            name: took[large][name].cpu / max(took[small][name].cpu, 1.0)
            for name in took[large]
            if name.startswith(("py ", "http ")) and name in took[small] and SORTED not in name
        }
        worst = sorted(growth, key=lambda name: -growth[name])
        target, met = at_most(growth[worst[0]], 1.5)
        rows.append(
            Measurement(
                claim=f"{engine}: growth of a page from {small:,} to {large:,} runs, CPU time, the worst",
                ours=f"{took[large][worst[0]].cpu:.1f} ms",
                peer=f"{took[small][worst[0]].cpu:.1f} ms",
                ratio=growth[worst[0]],
                target=target,
                met=met,
                note=", ".join(f"{name} {growth[name]:.1f}x" for name in worst[:6])
                + f"; the median {median(growth.values()):.2f}x (less than 1 ms counts as 1 ms)",
            )
        )
    of_sorts = max(size for size, each in took.items() if any(SORTED in name for name in each))
    sorts = {name: each for name, each in took[of_sorts].items() if name.startswith(f"py {SORTED}")}
    slowest = max(sorts, key=lambda name: sorts[name].cpu)
    rows.append(
        _row(
            f"{engine}, {of_sorts:,} runs: runs by cost, tokens or duration, in process, CPU, the slowest",
            sorts[slowest].cpu,
            IN_PROCESS_MS,
            note="reads all runs that match, so it grows with them and is not measured with more: "
            + ", ".join(f"{name.removeprefix('py ')} {each.cpu:.0f}" for name, each in sorts.items()),
        )
    )
    searched = max((size for size, each in took.items() if "search two words" in each), default=None)
    if searched is not None:
        asked = {name: each for name, each in took[searched].items() if name.startswith("search ")}
        slowest = max(asked, key=lambda name: asked[name].cpu)
        rows.append(
            _row(
                f"{engine}, {7 * searched:,} spans: search, CPU, the slowest",
                asked[slowest].cpu,
                50,
                note=", ".join(
                    f"{name.removeprefix('search ')} {each.cpu:.0f}" for name, each in asked.items()
                ),
            )
        )
    for name in ("performance", "cost"):
        reports = {key: each for key, each in at_largest.items() if key.startswith(f"report {name}")}
        slowest = max(reports, key=lambda key: reports[key].cpu)
        rows.append(
            _row(
                f"{engine}, {largest:,} runs: {name} over everything, CPU time, against 50,000 events before",
                reports[slowest].cpu,
                520,
                note=", ".join(
                    f"{key.removeprefix('report ')} {each.cpu:.0f}" for key, each in reports.items()
                ),
            )
        )
    rows.append(
        _row(
            f"{engine}, {largest:,} runs: stats, CPU time",
            at_largest["stats"].cpu,
            50,
            note="estimated from the last measurement; measuring exactly "
            f"{at_largest['stats exact'].cpu:,.0f} ms",
        )
    )
    return rows


def dashboard_row(folder: Path, size: int) -> Measurement:
    """Look at the views of lists in a browser; the best of three turns of each, and the slowest of them."""
    took: dict[str, float] = {}
    with dashboard.served(folder) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=tools.chromium(), args=["--no-sandbox"])
        for name in ("Runs", "Threads", "Memory", "Cost", "Schedules", "Store") * 3:
            place, sign = dashboard.VIEWS[name]
            ms = dashboard.first_sight(browser, f"{url}/ui/#/{place}", sign)
            took[name] = min(ms, took.get(name, ms))
        browser.close()
    return _row(
        f"SQLite, {size:,} runs: first sight of a view of the dashboard, time, the slowest",
        max(took.values()),
        1500,
        note=", ".join(f"{name} {ms:.0f}" for name, ms in took.items()),
    )


def _row(claim: str, ours: float, limit: float, *, note: str) -> Measurement:
    target, met = at_most(ours / limit, 1)
    return Measurement(
        claim=claim, ours=f"{ours:.1f} ms", peer=f"{limit:g} ms", ratio=ours / limit, target=target, met=met,
        note=note,
    )  # fmt: skip


if __name__ == "__main__":
    url, size = sys.argv[1], int(sys.argv[2])
    with treering.open(url) as filled:
        build(filled, size)
