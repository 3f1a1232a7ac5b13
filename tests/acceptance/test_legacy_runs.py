"""B7: endpoints fall back to the legacy system for runs that the store does not hold."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import treering
from treering.compat import services
from treering.errors import InvalidInput, NotFound
from treering.runs.listing import Archive, load_legacy
from treering.server.app import create_app
from treering.server.settings import Settings

LINE = {
    "type": "message",
    "ts": "2024-05-01T10:00:00+00:00",
    "run_id": "old",
    "agent": "planner",
    "label": "assistant message",
    "ref": {"message_id": "17"},
    "meta": {"model": None, "tokens": 5, "cost_eur": 0.1},
}


class OldSystem:
    """What the document calls ``crud``: the system of before."""

    def timeline(self, run_id, *, limit, cursor):
        if run_id != "old":
            return None
        return {"events": [LINE][:limit], "next_cursor": cursor}

    def cost(self, run_id):
        return (
            {"by_agent": [], "total": {"agent": None, "tokens": 5, "cost_eur": 0.1}}
            if run_id == "old"
            else None
        )


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        with opened.run(agent="planner", id="new") as run:
            run.message("user", "hi")
        opened.flush()
        yield opened


def test_only_missing_runs_are_read_from_the_legacy_system(store):
    with pytest.raises(NotFound, match="run 'old' not found"):
        timeline(store, "old")
    store.read_legacy(OldSystem())
    assert timeline(store, "old") == {"events": [LINE], "next_cursor": None}
    assert [event["label"] for event in timeline(store, "new")["events"]] == ["user message"]
    with pytest.raises(NotFound, match="run 'neither' not found"):
        timeline(store, "neither")


def test_so_do_the_endpoints(store):
    store.read_legacy(OldSystem())
    with TestClient(create_app(store, Settings()), base_url="http://127.0.0.1:8787") as client:
        assert client.get("/runs/old/timeline").json()["events"] == [LINE]
        assert client.get("/runs/old/cost").json()["total"]["cost_eur"] == 0.1
        assert client.get("/runs/new/timeline").json()["events"][0]["label"] == "user message"
        assert client.get("/runs/neither/timeline").status_code == 404
        assert client.get("/runs/neither").status_code == 404
        old = client.get("/runs/old").json()
        assert (old["agent"], old["status"], old["tokens"]) == ("planner", "unknown", 5)
        assert old["cost"] == [{"currency": "EUR", "amount": 0.1}]
        assert old["started_at"].startswith("2024-05-01T10:00:00")
        assert client.get("/runs/neither/cost").status_code == 404


def test_an_archive_answers_for_what_was_dropped(tmp_path, store):
    store.copy_to(tmp_path / "archive")
    before = timeline(store, "new")
    store.forget(scope="/run/new")
    with treering.open(tmp_path / "archive") as archive:
        store.read_legacy(Archive(archive.engine, archive.space))
        assert timeline(store, "new") == before
        with TestClient(create_app(store, Settings()), base_url="http://127.0.0.1:8787") as client:
            new = client.get("/runs/new").json()
            assert (new["agent"], new["status"]) == ("planner", "ok")
        with pytest.raises(NotFound):
            timeline(store, "neither")


def test_a_reader_is_named_by_its_module():
    assert isinstance(load_legacy(f"{__name__}:OldSystem"), OldSystem)
    for wrong in ("nowhere", "no.such.module:reader", "json:nothing", "json:dumps"):
        with pytest.raises(InvalidInput):
            load_legacy(wrong)


def timeline(store, run_id):
    services.use(store)
    try:
        return services.get_run_timeline(run_id)
    finally:
        services.use(None)
