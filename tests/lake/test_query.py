"""SQL over live and archived runs: the sums of the roll-ups, from any engine; nothing of other tenants."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import httpx
import msgspec
import polars as pl
import pytest

import treering
from tests.lake.conftest import A_DAY, RUNS, later, write_runs
from tests.server.running import running
from treering.core.batch import Draft, Event, Usage
from treering.core.rollups import MOVED, Move
from treering.errors import Forbidden, InvalidInput, TimedOut
from treering.server.auth import Keys
from treering.server.settings import Settings
from treering.store import Store

SUMS = "SELECT agent, sum(cost_nanos), sum(input_tokens), sum(total_tokens) FROM {} GROUP BY 1 ORDER BY 1"
LIVE = 4
KEY = "an-admin-key-0123456789"


@pytest.fixture(scope="module")
def archived(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with archived runs, and some live ones of the same agents."""
    folder = Path(shutil.copytree(written, tmp_path_factory.mktemp("query") / "store"))
    with treering.open(folder) as opened:
        later(opened).archive(before=A_DAY)
        write_runs(opened, LIVE)
        yield later(opened)


def totals(store: Store) -> list:
    """The roll-ups, as `SUMS` has them."""
    parts = sorted(store.cost.of_days(by="agent").parts, key=lambda part: str(part.key))
    return [(part.key, part.nanos["USD"], part.usage.input, part.tokens) for part in parts if part.tokens]


def archived_totals(store: Store) -> list:
    """The same of archived runs."""
    found: dict = {}
    for (run,) in store.query("SELECT run FROM runs WHERE archived").rows:
        for part in store.cost.of_run(run, by="agent").parts:
            total = found.setdefault(part.key, [0, 0, 0])
            for at, value in enumerate((part.nanos["USD"], part.usage.input, part.tokens)):
                total[at] += value
    return [(agent, *total) for agent, total in sorted(found.items())]


class TestSums:
    @pytest.mark.parametrize("table", ["costs", "runs", "events"])
    def test_they_are_those_of_the_rollups(self, archived: Store, table: str) -> None:
        found = archived.query(SUMS.format(f"{table} WHERE total_tokens IS NOT NULL")).rows
        assert list(found) == totals(archived)

    def test_a_span_that_was_moved_counts_where_it_was_moved_to(self, store: Store) -> None:
        info = next(iter(store.runs.each()))
        draft = Draft("default")
        draft.event(
            Event(
                id="moved", kind=MOVED, ts_us=info.started_at_us, scope=info.scope, run=info.id,
                agent="other", name="span.llm", model="gpt-5", usage=Usage(input=100, output=10),
                cost_nanos=2_500_000, currency="USD", thread=info.thread_key,
                data=msgspec.json.encode(
                    Move(agent=info.agent, thread=info.thread_key, currency="USD", events=1)
                ),
            )
        )  # fmt: skip
        store.commit(draft)
        store.archive(before=A_DAY)
        assert "other" in [agent for agent, *_ in totals(store)]
        assert list(store.query(SUMS.format("costs")).rows) == totals(store)

    def test_duckdb_polars_and_spark_read_the_files(self, archived: Store, spark) -> None:
        paths = archived.archived().paths
        expected = archived_totals(archived)
        source = f"read_parquet({paths!r}, hive_partitioning = true)"
        assert duckdb.sql(SUMS.format(source + " WHERE total_tokens > 0")).fetchall() == expected
        sums = [pl.sum(name) for name in ("cost_nanos", "input_tokens", "total_tokens")]
        lazy = pl.scan_parquet(paths, hive_partitioning=True).filter(pl.col("total_tokens") > 0)
        assert lazy.group_by("agent").agg(sums).sort("agent").collect().rows() == expected
        root = paths[0].partition("/space=")[0]
        frame = spark.read.option("basePath", root).parquet(f"{root}/space=default")
        frame.createOrReplaceTempView("lake")
        rows = spark.sql(SUMS.format("lake WHERE total_tokens > 0 AND day > '2020-01-01'")).collect()
        assert [tuple(row) for row in rows] == expected


@pytest.fixture(scope="module")
def spark() -> Iterator:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer()
    server.start()
    _, port = server.listening_address
    with pytest.MonkeyPatch.context() as patch:
        # Without a main program, as in a worker of pytest-xdist, Spark's client looks for a whole Spark.
        patch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    yield session
    session.stop()
    server.stop()


class TestQueries:
    def test_runs_and_contents(self, archived: Store) -> None:
        sql = "SELECT status, count(*) AS n FROM tool_calls GROUP BY ALL ORDER BY ALL"
        assert archived.query(sql).rows == (("error", 2), ("ok", RUNS + LIVE))
        sql = "SELECT count(*) FROM tool_calls WHERE output->>'status' = 'lost' AND name = 'track'"
        assert archived.query(sql).rows[0][0] > 1
        said = archived.query("SELECT count(*) FROM messages WHERE content LIKE ?", ["%on its way%"])
        assert said.rows == ((RUNS + LIVE,),)
        sql = "SELECT archived, count(*) FROM runs GROUP BY 1 ORDER BY 1"
        assert archived.query(sql).rows == ((False, LIVE), (True, RUNS))

    def test_only_the_days_asked_for_are_read(self, archived: Store) -> None:
        for table in ("events", "runs"):
            assert archived.query(f"SELECT count(*) FROM {table} WHERE day < '2020-01-01'").rows == ((0,),)
        day = archived.query("SELECT max(day) FROM runs").rows[0][0]
        assert archived.query("SELECT count(*) FROM runs WHERE day = ?", [day]).rows[0][0] >= LIVE

    def test_too_many_rows_are_cut_off(self, archived: Store) -> None:
        found = archived.query("SELECT * FROM events", max_rows=3)
        assert (len(found.rows), found.truncated) == (3, True)

    def test_a_query_that_takes_too_long_ends(self, archived: Store) -> None:
        endless = "SELECT count(*) FROM range(1000000000000) AS each(n) WHERE n % 7 = 3"
        with pytest.raises(TimedOut, match="fewer days"):
            archived.query(endless, seconds=0.3)

    @pytest.mark.parametrize(
        "sql, message",
        [
            ("SELEC 1", "syntax error"),
            ("SELECT nothing FROM runs", "nothing"),
            ("SELECT 1; SELECT 2", "one SELECT"),
            ("DELETE FROM events", "only SELECT"),
            ("CREATE TABLE t (a int)", "only SELECT"),
            ("SET threads = 8", "only SELECT"),
            ("COPY events TO '/tmp/treering.csv'", "only SELECT"),
            ("ATTACH '/tmp/treering.db'", "only SELECT"),
            ("INSTALL httpfs", "only SELECT"),
            ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
            ("SELECT * FROM read_text('/etc/passwd')", "disabled"),
            ("SELECT * FROM glob('/*')", "disabled"),
            ("SELECT * FROM '/etc/passwd'", "does not exist"),
            ("SELECT * FROM store", "does not exist"),
        ],
    )
    def test_what_is_not_a_select_of_runs_is_refused(self, archived: Store, sql: str, message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            archived.query(sql)

    def test_it_needs_no_archive(self) -> None:
        with treering.open("memory:") as store:
            write_runs(store, 2)
            assert store.query("SELECT count(*), sum(cost) FROM runs").rows == ((2, 0.005),)


class TestInterfaces:
    def test_the_command_line(self, treering_command, folder: Path) -> None:
        run = treering_command
        assert run("archive", "--store", folder).out.startswith("nothing is archived")
        assert "nothing to archive" in run("archive", "--before", "1d", "--store", folder).out
        query = "select agent, count(*) n from runs group by 1 order by 1 limit 1"
        assert run("sql", query, "--json", "--store", folder).json == [{"agent": "agent-0", "n": 4}]
        assert run("sql", query, "--format", "csv", "--store", folder).out == "agent,n\nagent-0,4\n"
        assert run("sql", query, "--format", "jsonl", "--store", folder).json == {"agent": "agent-0", "n": 4}
        assert run("sql", query, "--store", folder).out.split() == ["agent", "n", "agent-0", "4"]
        failed = run("sql", "select nope from runs", "--store", folder)
        assert (failed.code, "nope" in failed.err) == (2, True)

    def test_over_http_each_key_sees_its_own_project(self, archived: Store) -> None:
        keys = Keys(archived.engine, clock=archived.clock)
        reader = keys.create(project="default", scope="read").token
        other = keys.create(project="acme", scope="admin").token
        sql = SUMS.format("costs")
        with running(archived, Settings(api_key=KEY)) as url:

            def post(path: str, token: str, body: dict) -> httpx.Response:
                return httpx.post(f"{url}{path}", json=body, headers={"Authorization": f"Bearer {token}"})

            found = post("/store/query", reader, {"sql": sql}).json()
            assert [tuple(row) for row in found.get("rows", [found])] == totals(archived)
            assert post("/store/query", other, {"sql": "SELECT count(*) FROM events"}).json()["rows"] == [[0]]
            assert post("/store/query", reader, {"sql": "SELECT * FROM secrets"}).status_code == 422
            assert post("/store/archive", reader, {"before": "30d"}).status_code == 403
            assert post("/store/archive", KEY, {"before": "30d"}).json()["events"] == 0
            listing = httpx.get(f"{url}/store/archive", headers={"Authorization": f"Bearer {reader}"}).json()
            assert listing["rows"] == archived.archived().rows
            shown = httpx.get(f"{url}/runs", headers={"Authorization": f"Bearer {reader}"}).json()["runs"]
            assert [run["archived"] for run in shown] == [False] * LIVE + [True] * RUNS
            with treering.open(url, api_key=reader) as remote:
                assert list(remote.query(sql).rows) == totals(archived)
                newest = "SELECT max(day), max(started_at) FROM runs"
                assert remote.query(newest).rows == archived.query(newest).rows
                assert remote.archived() == archived.archived()
                with pytest.raises(Forbidden):
                    remote.archive(before="30d")
            with treering.open(url, api_key=KEY) as remote:
                assert remote.archive(before="30d").events == 0
