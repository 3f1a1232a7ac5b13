"""`treering serve --workers`: processes that share a port, and a supervisor that keeps them running."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

import treering
from tests.server.test_serving import Server, refused

PATIENCE = 60
"""Seconds until a test gives up."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def location(request, tmp_path):
    return tmp_path / "store" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def children(process) -> set[int]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return set(map(int, found.split()))


def until(holds) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def save(server, number) -> bool:
    try:
        return httpx.put(f"{server.url}/state/key-{number}", json={"value": number}, timeout=30).is_success
    except httpx.HTTPError:
        return False


def test_workers_share_a_port_and_a_dead_one_is_replaced(location):
    with Server(location, "--workers", "3") as server:
        until(lambda: len(children(server.process)) == 3)
        saved = [number for number in range(30) if save(server, number)]
        assert len(saved) == 30
        before = children(server.process)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        saved += [number for number in range(30, 60) if save(server, number)]
        until(lambda: len(children(server.process) - before) == 1)
        assert save(server, 60)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        assert not any(Path(f"/proc/{each}").exists() for each in before)
    with treering.open(location) as store:
        assert [store.state.get(f"key-{number}") for number in saved] == saved
        assert store.verify().ok


def test_workers_end_with_a_supervisor_that_was_killed(tmp_path):
    with Server(tmp_path / "store", "--workers", "2") as server:
        until(lambda: len(children(server.process)) == 2)
        workers = children(server.process)
        server.process.kill()
        server.process.wait()
        until(lambda: not any(_runs(each) for each in workers))


def _runs(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_what_one_worker_cannot_start_with_is_the_error_of_all(tmp_path):
    (tmp_path / "a file").write_text("")
    failed = refused("--workers", "2", "--port", "0", "--store", str(tmp_path / "a file"))
    alone = refused("--port", "0", "--store", str(tmp_path / "a file"))
    assert (failed.returncode, failed.stderr) == (alone.returncode, alone.stderr)
    assert failed.returncode not in {0, 1}
    memory = refused("--workers", "2", "--store", "memory:")
    assert memory.returncode == 2
    assert "leave out --workers" in memory.stderr
