"""Stores of other tools on the command line: Agentry's folder and LangGraph's databases."""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing

import pytest

from tests.cli.test_transfer import counts


class TestAgentry:
    @pytest.fixture
    def outputs(self, tmp_path):
        folder = tmp_path / "outputs"
        folder.mkdir()
        with closing(sqlite3.connect(folder / "checkpoints.db")) as database, database:
            database.execute(
                "CREATE TABLE checkpoints (thread_id TEXT PRIMARY KEY, payload BLOB, updated_at REAL)"
            )
            database.executemany(
                "INSERT INTO checkpoints VALUES (?, ?, ?)",
                [
                    ("plain", json.dumps({"iter": 2}).encode(), 1.5),
                    ("pickled", pickle.dumps({"iter": 7}), 2.5),
                ],
            )
        return folder

    def test_a_pickle_is_refused_in_words_that_help(self, run, outputs):
        ran = run("import", "agentry", outputs, "--store", "new")
        assert (ran.code, ran.out) == (2, "")
        assert "--unpickler MODULE:FUNCTION" in ran.err
        assert "--skip-pickled" in ran.err
        assert run("import", "agentry", outputs, "--store", "new", "--skip-pickled").out.splitlines()[1] == (
            "  checkpoints.db: 2 checkpoints, imported 1, 1 left out (1 pickled rows were skipped)"
        )

    def test_an_unpickler_from_the_command_line(self, process, outputs, tmp_path):
        (tmp_path / "mine.py").write_text(
            "import pickle\ndef read(data):\n    return pickle.loads(data)\n", encoding="utf-8"
        )
        ran = process("import", "agentry", outputs, "--store", "new", "--unpickler", "mine:read", "--json")
        assert counts(ran.json) == {"checkpoints": (2, 2, 0)}
        assert process("show", "pickled", "--store", "new", "--json").json["state"] == {"iter": 7}
        for wrong in ("mine:nothing", "nowhere:read", "mine", ":"):
            ran = process("import", "agentry", outputs, "--store", "new", "--unpickler", wrong)
            assert ran.code == 2
            assert "give MODULE:NAME" in ran.err


class TestLangGraph:
    def graph(self, saver):
        from langgraph.graph import END, START, MessagesState, StateGraph

        builder = StateGraph(MessagesState)
        builder.add_node("model", lambda _: {"messages": [("ai", "hello")]})
        builder.add_edge(START, "model")
        builder.add_edge("model", END)
        return builder.compile(checkpointer=saver)

    @pytest.fixture
    def database(self, tmp_path):
        """Two turns of one thread, as LangGraph's own saver keeps them."""
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as saver:
            graph = self.graph(saver)
            for text in ("hi", "again"):
                graph.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": "t"}})
        return tmp_path / "graph.db"

    def test_a_database(self, run, database, tmp_path):
        planned = run("import", "langgraph", database, "--dry-run", "--json").json
        assert not (tmp_path / ".treering").exists()
        done = run("import", "langgraph", database, "--json").json
        assert counts(done) == counts(planned)
        assert counts(done)["checkpoints"] == (6, 6, 0)
        assert counts(run("import", "langgraph", database, "--json").json)["checkpoints"] == (6, 0, 6)
        shown = run("show", "t", "--json").json["messages"]
        assert [(each["type"], each["content"]) for each in shown] == [
            ("human", "hi"),
            ("ai", "hello"),
            ("human", "again"),
            ("ai", "hello"),
        ]
        assert len(run("log", "t", "--json").json["checkpoints"]) == 6

    def test_a_postgres_saver(self, run, empty_postgres_url):
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(empty_postgres_url) as saver:
            saver.setup()
            graph = self.graph(saver)
            graph.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "t"}})
        done = run("import", "langgraph", empty_postgres_url, "--json").json
        assert counts(done)["checkpoints"] == (3, 3, 0)
        assert run("show", "t", "--json").json["checkpoint"]["message_count"] == 2

    def test_no_secret_in_the_message(self, run, tmp_path):
        ran = run("import", "langgraph", "postgresql://me:hunter2@127.0.0.1:1/x?connect_timeout=2")
        assert ran.code == 8
        assert "hunter2" not in ran.err
        assert list(tmp_path.iterdir()) == []

    def test_something_else(self, run, tmp_path):
        (tmp_path / "x.db").write_text("no database at all, but long enough to be read as one" * 50, "utf-8")
        ran = run("import", "langgraph", "x.db")
        assert (ran.code != 0, ran.out) == (True, "")
        assert "x.db cannot be read as a SqliteSaver's database" in ran.err
        assert not (tmp_path / ".treering").exists()
