"""Histories of other tools with odd lines: importers read the rest, and count and name what they cannot.

The damage is drawn from a seed (`tests.mutations`): numbers for times, invalid UTF-8, wrong types, truncated
lines, dates that do not exist.
"""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import treering
from tests.importers.test_lines import FIXTURES, SOURCES
from tests.mutations import ODD_VALUES, SEED, damaged_bytes, damaged_lines, seeds, seeds_for
from treering.core.batch import Usage
from treering.errors import InvalidInput, NotFound
from treering.importers.registry import importer, load_function
from treering.importers.streams import record_stream
from treering.runs.prices import Exchange, price_call

SHARE = 0.5 / (len(SOURCES) + 5)
"""Of the time of the long version, for each of the tests below."""


class Sources:
    """One undamaged source of each importer, and where its damaged copy is put."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[str, dict[Path, bytes]] = {}
        self._named: dict[str, Path] = {}

    def write(self, name: str, chance: random.Random) -> Path:
        """Write a source with one damaged file; return what the importer is given."""
        if name not in self._whole:
            source, _ = SOURCES[name](self._folder / name)
            self._named[name] = source
            files = (
                [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file())
            )
            self._whole[name] = {each: each.read_bytes() for each in files}
        whole = self._whole[name]
        for path, data in whole.items():
            path.write_bytes(data)
        path = chance.choice(list(whole))
        path.write_bytes(damaged_lines(chance, whole[path]))
        return self._named[name]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return Sources(tmp_path_factory.mktemp("histories"))


WHOLE = {
    "jsonl": "is not a history exported|ends early|should hold",
    "evolve": "no session log and no checkpoint of Evolve found",
}
"""What may be said of a whole source: it is none of that tool's, or it was cut off."""


def check_import(sources: Sources, name: str, seed: int) -> None:
    """Import a damaged source: no error but that of ``strict``, and each line that is left out is named."""
    source = sources.write(name, random.Random(f"{name} {seed}"))
    work = load_function(importer(name).function)
    try:
        with treering.open("memory:") as store:
            try:
                would = work(source, store, dry_run=True)
            except (InvalidInput, NotFound) as error:
                if re.search(WHOLE.get(name, "(?!)"), str(error)):
                    return
                raise
            report = work(source, store)
            assert would.bad == report.bad
            assert all(each.strip() and "Traceback" not in each for each in report.bad)
            assert sum(each.left_out for each in report.files) >= len(report.bad)
            assert list(store.verify().problems) == []
            list(store.runs.each())
            list(store.threads())
            again = work(source, store)
            assert not again.new or report.bad, again  # a parent that was not there may be there now
        with treering.open("memory:") as store:
            if report.bad:
                with pytest.raises(InvalidInput):
                    work(source, store, strict=True)
                assert store.stats().rows["events"] == 0
            else:
                work(source, store, strict=True)
    except Exception as error:
        error.add_note(f"{SEED}={seed}")
        raise


@pytest.mark.parametrize("name", SOURCES)
def test_an_importer_reads_the_rest_of_any_history(name, sources):
    for seed in seeds(25):
        check_import(sources, name, seed)


@pytest.mark.soak
@pytest.mark.parametrize("name", SOURCES)
def test_an_importer_reads_the_rest_of_very_many_histories(name, sources):
    for seed in seeds_for(SHARE):
        check_import(sources, name, seed)


def check_stream(seed: int, name: str) -> None:
    """Record a damaged stream of a CLI agent, as a sandbox does while the agent runs."""
    chance = random.Random(f"stream {name} {seed}")
    (path,) = FIXTURES.glob(f"{name}/stream-0.jsonl")
    with treering.open("memory:") as store, store.run("fuzz") as run:
        try:
            record_stream(run, name, damaged_lines(chance, path.read_bytes()).splitlines())
        except Exception as error:
            error.add_note(f"{SEED}={seed}")
            raise


def check_database(folder: Path, seed: int) -> None:
    """Import a damaged database of LangGraph's saver: rows that cannot be read are left out and named."""
    chance = random.Random(f"langgraph {seed}")
    whole = folder / "whole.db"
    if not whole.exists():
        write_checkpoints(whole)
    path = folder / "damaged.db"
    path.write_bytes(whole.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        table = chance.choice(("checkpoints", "writes"))
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        rows = [row[0] for row in database.execute(f"SELECT rowid FROM {table}")]
        column, row = chance.choice(columns), chance.choice(rows)
        (value,) = database.execute(f'SELECT "{column}" FROM {table} WHERE rowid = ?', (row,)).fetchone()
        if isinstance(value, bytes):
            odd: object = damaged_bytes(chance, value)
        else:
            odd = chance.choice(
                [b"\xff", "x", 7, -1, 1.5, None, "\0", damaged_bytes(chance, str(value).encode())]
            )
        with contextlib.suppress(sqlite3.Error):  # a key, or not null
            database.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (odd, row))
        database.commit()
    work = load_function(importer("langgraph").function)
    try:
        with treering.open("memory:") as store:
            report = work(path, store)
            assert list(store.verify().problems) == []
            assert all(each.strip() for each in report.bad)
    except Exception as error:
        error.add_note(f"{SEED}={seed}")
        raise


def write_checkpoints(path: Path) -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import START, MessagesState, StateGraph

    graph = StateGraph(MessagesState)
    graph.add_node("say", lambda _: {"messages": [("ai", "hi")]})
    graph.add_edge(START, "say")
    with SqliteSaver.from_conn_string(str(path)) as saver:
        built = graph.compile(checkpointer=saver)
        for thread in ("a", "b"):
            built.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": thread}})


def check_price(seed: int) -> None:
    """Price a call with odd numbers, models and times: an amount, or none, and no error."""
    chance = random.Random(f"price {seed}")
    model = chance.choice(["gpt-4o", "claude-sonnet-4-5", "", "x" * 600, "\0", "../..", "gpt-4o\ud800"])
    counts = [chance.choice([0, 1, 10**6, 2**40]) for _ in range(3)]
    usage = Usage(input=counts[0], output=counts[1], cache_read=counts[2])
    ts_us = chance.choice([0, 1, 1763280000 * 10**6, 2**53 - 1, -1])
    names = ("provider", "service_tier", "processing", "modalities")
    data = {name: chance.choice(ODD_VALUES) for name in names if chance.random() < 0.5}
    try:
        nanos, currency = price_call(data, model, usage, ts_us, None, None)
        assert (nanos is None) == (currency is None)
    except Exception as error:
        error.add_note(f"{SEED}={seed}")
        raise


def check_rate(seed: int) -> None:
    """Look up the rate of a currency on an odd day: that of the last day before it, or none."""
    chance = random.Random(f"rate {seed}")
    day = chance.choice([-(2**40), -1, 0, 1, 10_000, 20_000, 30_000, 100_000, 2**31, 2**53 // 86_400_000_000])
    try:
        rate = Exchange().rate(chance.choice(["USD", "EUR", "XXX", "", "\0", "usd"]), day)
        assert rate is None or rate.rate > 0
    except Exception as error:
        error.add_note(f"{SEED}={seed}")
        raise


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_any_stream_of_an_agent_is_recorded(name):
    for seed in seeds(40):
        check_stream(seed, name)


def test_any_database_of_langgraph_is_imported_as_far_as_it_can_be_read(tmp_path):
    for seed in seeds(60):
        check_database(tmp_path, seed)


def test_any_call_on_any_day_is_priced_or_not():
    for seed in seeds(300):
        check_price(seed)
        check_rate(seed)


@pytest.mark.soak
def test_very_many_streams_databases_and_calls(tmp_path):
    for seed in seeds_for(SHARE):
        check_stream(seed, "claude-code")
        check_stream(seed, "codex")
        check_database(tmp_path, seed)
        check_price(seed)
        check_rate(seed)
