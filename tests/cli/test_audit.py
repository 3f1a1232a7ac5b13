"""``treering audit``: sealing, publishing, proving and checking."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import treering
from tests.cli.test_maintenance import Cli
from treering.blobs.location import open_blobs
from treering.errors import Conflict, InvalidInput, Unreachable
from treering.maintenance.audit import publish
from treering.testing import batches


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREERING_URL", str(tmp_path / "store"))
    with treering.open(tmp_path / "store", durability="fast") as store:
        store.commit(batches.events(store.space, batches.event(id="e1", name="one"), batches.event(id="e2")))
    return tmp_path / "store"


@pytest.fixture
def cli(capsys, folder) -> Cli:
    assert folder.exists()
    return Cli(capsys)


def test_a_history_is_sealed_published_and_checked(cli):
    public = cli("audit", "key", "audit.pem").out
    Path("public.pem").write_text(public)
    assert Path("audit.pem").stat().st_mode & 0o777 == 0o600
    assert cli("audit", "key", "audit.pem").code != 0, "it is not overwritten"
    done = cli(
        "audit", "seal", "--key", "audit.pem", "--publish", "seals", "--publish", "last.json", "--json"
    )
    assert done.json["number"] == 1
    assert Path("seals/seal-00000001.json").read_bytes() == Path("last.json").read_bytes()
    assert cli("audit", "seal", "--json").json == {"sealed": False}
    assert [seal["number"] for seal in cli("audit", "list", "--json").json["seals"]] == [1]
    assert "2026" in cli("audit", "list").out or "yes" in cli("audit", "list").out
    checked = cli("audit", "verify", "--against", "seals", "--key", "public.pem")
    assert (checked.code, checked.out.splitlines()[0]) == (0, "As sealed: 1 seal, 1 commit, 0 erased rows")
    Path("proof.json").write_text(cli("audit", "prove", "e1").out)
    assert cli("audit", "check", "proof.json", "--against", "last.json", "--key", "public.pem").code == 0
    Path("proof.json").write_text(Path("proof.json").read_text().replace("one", "two"))
    assert cli("audit", "check", "proof.json", "--against", "last.json").code == 5
    Path("evidence.jsonl").write_text(cli("audit", "evidence").out)
    done = cli("audit", "check", "evidence.jsonl", "--against", "seals", "--key", "public.pem")
    assert (done.code, done.out) == (0, "as it was sealed; seals: 1, events erased: 0\n")


def test_a_changed_row_is_named_and_the_exit_code_says_so(cli, tmp_path):
    cli("audit", "seal", "--publish", "seals")
    with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as connection, connection:
        connection.execute("UPDATE event SET name = 'two' WHERE id = 'e1'")
    checked = cli("audit", "verify", "--against", "seals")
    assert checked.code == 5
    assert "changed: event 'e1': it is not the event that was sealed" in checked.out
    report = cli("audit", "verify", "--against", "seals", "--json").json
    assert (report["ok"], report["findings"][0]["what"]) == (False, "event 'e1'")


def test_a_folder_without_seals_is_refused(cli):
    Path("empty").mkdir()
    assert "holds no seals" in cli("audit", "verify", "--against", "empty").err


def test_a_published_seal_is_never_replaced_by_another(cli, tmp_path):
    cli("audit", "seal", "--publish", "seals")
    assert cli("audit", "export", "1", "--publish", "seals").code == 0, "the same again is harmless"
    path = Path("seals/seal-00000001.json")
    path.write_text(path.read_text().replace('"commits": 1', '"commits": 2'))
    with treering.open(tmp_path / "store") as store, pytest.raises(Conflict, match="rewritten"):
        publish(store.audit.export(1), "seals")


def test_a_seal_is_noted_in_a_git_repository(cli, tmp_path, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")
    subprocess.run(["git", "init", "-q", "repository"], check=True)
    assert "could not note seal 1" in cli("audit", "seal", "--publish", "git:repository").err
    subprocess.run(["git", "-C", "repository", "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    assert cli("audit", "export", "1", "--publish", "git:repository").code == 0
    note = subprocess.run(
        ["git", "-C", "repository", "notes", "--ref=treering", "show"], capture_output=True, check=True
    ).stdout
    seal = json.loads(note)
    with treering.open(tmp_path / "store") as store:
        assert store.audit.verify([seal]).ok


def test_a_seal_is_posted_to_a_webhook(cli, tmp_path):
    received: list[bytes] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"webhook:http://127.0.0.1:{server.server_port}/seals"
            assert cli("audit", "seal", "--publish", url).code == 0
        finally:
            server.shutdown()
            thread.join()
    assert json.loads(received[0])["number"] == 1
    with treering.open(tmp_path / "store") as store:
        seal = store.audit.export(1)
        with pytest.raises(InvalidInput, match="not a webhook"):
            publish(seal, "webhook:ftp://host")
        with pytest.raises(Unreachable):
            publish(seal, f"webhook:http://127.0.0.1:{server.server_port}/seals")


def test_a_seal_is_published_to_a_bucket(folder, s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    url = f"{s3.endpoint}/{s3.bucket}/seals"
    with treering.open(folder) as store:
        seal = store.audit.seal()
        assert publish(seal, url) == publish(seal, url) == f"{url}/seal-00000001.json"
    assert open_blobs(url).read("seal-00000001.json").data == seal.to_json()


def test_sealing_goes_on_until_it_is_interrupted(folder):
    command = ["-m", "treering", "audit", "seal", "--every", "0.05", "--publish", "seals"]
    with subprocess.Popen([sys.executable, *command], env=os.environ) as running:
        try:
            with treering.open(folder) as store:
                while store.audit.last() is None:
                    store.engine.wait(store.space, 1, seconds=1)
                store.commit(batches.events(store.space, batches.event(id="e3")))
                while store.audit.last().number < 2:
                    store.engine.wait(store.space, 4, seconds=1)
        finally:
            running.terminate()
    assert (folder.parent / "seals" / "seal-00000001.json").exists()
