"""How commands print: colours, columns, local times, progress."""

from __future__ import annotations

import time

import pytest
from rich.progress import Progress as Bar
from rich.progress import Task

import treering
from treering.cli import console
from treering.cli.console import Progress, clock_time, figures, progress, when


@pytest.fixture
def zone(monkeypatch):
    """Set the local time zone."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


NOON_US = 1_763_200_800_123_456  # 2025-11-15T10:00:00.123456 UTC


def test_times_are_local_and_name_their_zone(zone):
    zone("Europe/Berlin")
    assert when(NOON_US) == "2025-11-15 11:00:00 CET"
    assert when("2025-07-15T10:00:00+00:00") == "2025-07-15 12:00:00 CEST"
    assert clock_time(NOON_US) == ("2025-11-15 CET", "11:00:00.123")
    zone("America/Sao_Paulo")
    assert when("2025-11-15T01:00:00Z") == "2025-11-14 22:00:00 -03"
    zone("UTC")
    assert when(NOON_US) == "2025-11-15 10:00:00 UTC"
    assert when("-") == "-"


def test_a_printed_time_selects_the_checkpoint_that_it_was_printed_for(run, tmp_path, zone):
    zone("Asia/Tokyo")
    with treering.open(tmp_path / ".treering") as store:
        saved = store.thread("t").append({"role": "user", "content": "Hi."})
    printed = run("show", "t").out
    line = next(line for line in printed.splitlines() if line.strip().startswith("saved"))
    day, clock, name = line.split()[1:]
    assert name == "JST"
    # The text is to the second, so the checkpoint is at or before the next second.
    later = f"{day}T{clock}.999999"
    assert run("show", f"t@{later}", "--json").json["checkpoint"]["id"] == saved.id
    assert run("show", f"t@{later}+00:00", "--json").json["checkpoint"]["id"] == saved.id  # nine hours later
    assert run("show", f"t@{later}+12:00").code == 3  # three hours before it was saved


def test_columns_are_aligned_whatever_is_coloured():
    table = [("STATUS", "NAME"), (console.status_text("error"), "a"), (console.status_text("ok"), "b")]
    lines = [console._STYLE.sub("", line) for line in console.rows(table)]
    assert lines == ["STATUS  NAME", "error   a", "ok      b"]
    assert console.status_text("error").startswith("\x1b[31m")
    assert console.status_text("what?") == console.status_text("what?", "what?")


def test_statuses_are_coloured_where_that_is_wanted(run, tmp_path, monkeypatch):
    with treering.open(tmp_path / ".treering") as store, store.run(agent="planner"):
        pass
    assert "\x1b[" not in run("runs").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32mok" in run("runs").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("runs").out


def task_of(**fields: object) -> Task:
    """A task of a bar that has run for ten seconds."""
    now = [0.0]
    bar = Bar(get_time=lambda: now[0], auto_refresh=False)
    task = bar.add_task("copying", total=None, items="", bytes=None, total_bytes=None)
    for second in range(0, 11, 2):
        now[0] = float(second)
        Progress(bar, task).update(
            **{
                name: value * second // 10 if name in ("done", "bytes") else value
                for name, value in fields.items()
            }
        )  # type: ignore[arg-type]
    return bar.tasks[0]


def test_progress_shows_items_bytes_rate_and_the_time_left():
    assert figures(task_of(done=500, total=1_000, bytes=50_000_000)) == (
        "500 of 1,000  50.0 MB  5.0 MB/s  0:10 left"
    )
    assert figures(task_of(done=5, total=20, bytes=1_000_000, total_bytes=4_000_000)) == (
        "5 of 20  1.0 MB of 4.0 MB  100.0 KB/s  0:30 left"
    )
    assert figures(task_of(done=2_000)) == "2,000  200/s  0:10"


def test_there_is_no_progress_without_a_terminal(capsys):
    with progress("copying") as bar:
        assert not bar.is_shown
        bar.update(1, 2)
    assert capsys.readouterr().err == ""
