"""``treering doctor`` passes healthy stores, finds every kind of problem, and changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from importlib import metadata

import pytest

import treering
from treering.cli import doctor
from treering.cli.doctor import Finding


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with a little of everything, readable only by its owner."""
    for name in list(os.environ):
        if name.startswith("TREERING_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "agents"
    with treering.open(folder) as opened:
        opened.memory.save("a", "text")
        opened.thread("t").append({"role": "user", "content": "Hi"})
        with opened.run(agent="a"):
            pass
        opened.schedules.interval(3600, prompt="p")
    folder.chmod(0o700)
    return folder


def of(ran, what) -> dict:
    (found,) = [each for each in ran.json["findings"] if each["what"] == what]
    return found


def stored_rows(folder):
    """All rows of the tables that are not derived."""
    connection = sqlite3.connect(folder / "treering.db")
    tables = (
        "alembic_version",
        "meta",
        "space",
        "scope",
        "commits",
        "body",
        "event",
        "list",
        "item",
        "ref",
        "lease",
    )
    rows = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    connection.close()
    return rows


def test_a_healthy_store_passes_and_is_not_changed(run, store):
    before = stored_rows(store)
    ran = run("doctor", "--store", store, "--json")
    assert (ran.code, ran.json["ok"], ran.json["broken"], ran.json["warnings"]) == (0, True, 0, 0)
    assert of(ran, "namespace default")["status"] == "ok"
    assert "1 active tasks" in of(ran, "schedules")["detail"]
    assert stored_rows(store) == before
    assert "no problems found" in run("doctor", "--store", store).out
    assert "namespace default" not in run("doctor", "--store", store, "--no-verify").out


def test_settings_are_shown_without_secrets(run, store, monkeypatch):
    monkeypatch.setenv("TREERING_URL", "postgresql://me:s3cret@127.0.0.1:9/agents?sslpassword=s3cret")
    monkeypatch.setenv("TREERING_API_KEY", "k3y-of-mine")
    ran = run("doctor", "--store", store)
    assert "(from --store)" in ran.out
    assert "TREERING_API_KEY" in ran.out
    whole = ran.out + run("doctor").out
    assert "s3cret" not in whole
    assert "k3y-of-mine" not in whole
    assert "from TREERING_URL" in whole


def test_no_store_and_no_server_are_broken(run, tmp_path):
    ran = run("doctor", "--store", tmp_path / "nothing", "--json")
    assert (ran.code, of(ran, "presence")["status"]) == (1, "broken")
    assert not (tmp_path / "nothing").exists()
    ran = run("doctor", "--store", "postgresql://nobody@127.0.0.1:9/x?connect_timeout=1", "--json")
    assert (ran.code, of(ran, "reachable")["status"]) == (1, "broken")
    assert "Unreachable" in of(ran, "reachable")["detail"]


def test_a_postgres_server_is_checked(run, postgres_url):
    with treering.open(postgres_url) as opened:
        opened.memory.save("a", "text")
    ran = run("doctor", "--store", postgres_url, "--json")
    assert (ran.code, of(ran, "namespace default")["status"]) == (0, "ok")


def test_damage_is_reported_with_advice(run, store):
    connection = sqlite3.connect(store / "treering.db")
    connection.execute("DELETE FROM body")
    connection.commit()
    connection.close()
    ran = run("doctor", "--store", store, "--json")
    found = of(ran, "namespace default")
    assert (ran.code, found["status"]) == (1, "broken")
    assert "restore a backup" in found["advice"]


def test_damaged_derived_data_is_repaired_by_reindex(run, store):
    connection = sqlite3.connect(store / "treering.db")
    connection.execute("DELETE FROM rollup")
    connection.commit()
    connection.close()
    assert "treering reindex" in of(run("doctor", "--store", store, "--json"), "namespace default")["advice"]
    assert run("reindex", "--store", store).code == 0
    assert run("doctor", "--store", store).code == 0


@pytest.mark.parametrize(
    "version, status, word", [("9999", "broken", "upgrade"), ("0000", "warning", "migrate")]
)
def test_a_store_with_another_schema_is_not_opened(run, store, version, status, word):
    connection = sqlite3.connect(store / "treering.db")
    connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    connection.commit()
    connection.close()
    before = stored_rows(store)
    ran = run("doctor", "--store", store, "--json")
    assert of(ran, "presence")["status"] == status
    assert word in of(ran, "presence")["advice"]
    assert ran.code == (1 if status == "broken" else 0)
    assert stored_rows(store) == before


def test_files_that_others_can_read_are_reported(store):
    (store / "treering.db").chmod(0o644)
    store.chmod(0o755)
    above = [each for each in store.parents if each.stat().st_mode & 0o001 == 0]
    found = next(each for each in doctor.check_files(store) if each.what == "permissions")
    assert found.status == ("ok" if above else "warning")
    store.chmod(0o700)
    assert next(each for each in doctor.check_files(store) if each.what == "permissions").status == "ok"


def test_a_full_disk_and_a_long_log_are_reported(store, monkeypatch):
    def files():
        return {each.what: each for each in doctor.check_files(store)}

    free = {"bytes": 500_000_000}
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: type("Usage", (), {"free": free["bytes"], "total": 10**12})
    )
    assert files()["disk space"].status == "warning"
    free["bytes"] = 1_000_000
    assert files()["disk space"].status == "broken"
    with (store / "treering.db-wal").open("wb") as log:
        log.truncate(300_000_000)
    assert files()["write-ahead log"].status == "warning"


def test_crashed_runs_and_overdue_tasks_are_reported(run, store):
    dying = (
        "import os, sys, treering\n"
        "store = treering.open(sys.argv[1])\n"
        "run = store.run(agent='a', id='died').__enter__()\n"
        "store.flush()\n"
        "os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", dying, str(store)], check=False)
    with treering.open(store) as opened:
        # The leases of the dead process would expire a little later.
        connection = sqlite3.connect(store / "treering.db")
        connection.execute("DELETE FROM lease")
        connection.commit()
        connection.close()
        (task,) = opened.schedules.list_tasks()
    ran = run("doctor", "--store", store, "--json")
    assert "died" in of(ran, "runs")["detail"]
    assert ran.code == 0
    with treering.open(store) as opened:
        opened.runs.mark_crashed()
        ref = opened.engine.scan_refs("default", "schedule/")[0]
        from msgspec.structs import replace

        from treering.schedules.tasks import OpenOccurrence, encode_task

        long_ago = time.time_ns() // 1000 - 3_600_000_000
        draft = opened.draft()
        occurrence = OpenOccurrence(at_us=long_ago, worker="w", claimed_at_us=long_ago)
        late = replace(task, next_run_us=long_ago, open_occurrences=(occurrence,))
        draft.set_ref(ref.name, encode_task(late), scope=ref.scope)
        opened.commit(draft)
    ran = run("doctor", "--store", store, "--json")
    assert of(ran, "runs")["status"] == "ok"
    assert task.id in of(ran, "schedules")["detail"]
    assert task.id in of(ran, "workers")["detail"]


def test_a_commit_from_the_future_and_an_unset_clock_are_reported(store, monkeypatch):
    with treering.open(store) as opened:
        assert [each.status for each in doctor.check_commit_times(opened)] == ["ok"]
        monkeypatch.setattr(doctor.time, "time_ns", lambda: (1_800_000_000 - 10**9) * 10**9)
        assert [each.status for each in doctor.check_commit_times(opened)] == ["warning"]
    monkeypatch.setattr(doctor.time, "time", lambda: 1000.0)
    assert [each.status for each in doctor.check_clock()] == ["broken"]


def test_a_private_file_that_git_does_not_ignore_is_reported(run, store, tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "MEMORY.md").write_text("private")
    ran = run("doctor", "--store", store, "--json")
    assert of(ran, "MEMORY.md")["status"] == "warning"
    assert run("memory", "protect").code == 0
    assert of(run("doctor", "--store", store, "--json"), "MEMORY.md")["status"] == "ok"


def test_extras_are_reported_with_their_versions(monkeypatch):
    lines = [
        "msgspec>=0.20; extra == 'one'",
        'no-such-package>=1; extra == "two"',
        "orjson>=999; extra == 'three'",
        "treering[one,two]; extra == 'all'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)
    found = {each.what: each for each in doctor.check_extras()}
    assert found["extra one"].status == "ok"
    assert "msgspec" in found["extra one"].detail
    assert found["extra three"].status == "warning"
    assert found["extras"] == Finding(
        what="extras",
        status="note",
        detail="not installed: two",
        advice="pip install 'treering[two]' for each one you need",
    )
