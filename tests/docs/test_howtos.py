"""Pages that need more than a folder, each with the real thing: a database, a bucket, a server, sessions."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import treering
from tests.docs.walking import DOCS, ROOT, needs_more, walk
from treering.cli.main import main

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TREERING_URL", "TREERING_BLOBS", "TREERING_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def page(name: str, *replaced: tuple[str, str]) -> str:
    text = (DOCS / "howto" / name).read_text("utf-8")
    assert needs_more(text)
    for old, new in replaced:
        assert old in text, old
        text = text.replace(old, new)
    return text


def test_move_to_postgres(empty_postgres_url, capsys):
    assert (
        walk(page("postgres.md", ("postgresql://agents@db.example/agents", empty_postgres_url)), capsys) == 2
    )
    with treering.open(empty_postgres_url) as store:
        assert store.thread("support/alice-2").load().message_count == 2
        assert store.verify().ok


def test_snapshots_go_to_a_bucket(s3, monkeypatch, capsys):
    monkeypatch.setenv("TREERING_HOME", str(Path("home").absolute()))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    bucket = f"{s3.endpoint}/{s3.bucket}"
    assert walk(page("s3.md", ("s3://agent-snapshots", bucket)), capsys) == 3
    for prefix in ("prod", "store"):
        held = [each["path"] for part in s3.obstore(prefix=prefix).list() for each in part]
        assert any(path.endswith(".pack") for path in held), prefix
    assert not list(Path("agents").rglob("*.pack"))


def test_claude_code_costs_what_it_says(folder, monkeypatch, capsys):
    shutil.copytree(
        ROOT / "tests" / "importers" / "fixtures" / "claude-code" / "projects",
        folder / ".claude" / "projects",
    )
    monkeypatch.setenv("HOME", str(folder))
    assert walk(page("claude-code.md"), capsys) == 4
    with treering.open() as store:
        assert f"{store.cost.of_days().total.amount('USD'):.6f}" == "0.021765"


def test_a_team_shares_a_server(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main("keys create --project acme --scope write --name build --store served".split())
    monkeypatch.setenv("TREERING_API_KEY", capsys.readouterr().out.strip())
    command = "import sys; from treering.cli.main import main; main(sys.argv[1:])"
    line = "serve --port 0 --store served".split()
    quiet = {name: value for name, value in os.environ.items() if name != "TREERING_API_KEY"}
    with subprocess.Popen(
        [sys.executable, "-c", command, *line], stderr=subprocess.PIPE, text=True, env=quiet
    ) as server:
        try:
            address = re.search(r"http://\S+?(?=;)", server.stderr.readline())[0]
            text = page("team-server.md").replace('open("https://agents.example")', f'open("{address}")')
            assert address in text
            walk(text, capsys)
        finally:
            server.terminate()
            server.communicate(timeout=30)
    assert server.returncode == -signal.SIGTERM  # it finished, and then did as it was told
    with treering.open("served", namespace="acme") as store:
        assert store.thread("support/alice").load().messages == [
            {"role": "user", "content": "Where is my refund?"}
        ]


def test_every_page_that_asks_for_more_gets_it():
    asking = {each.name for each in (DOCS / "howto").glob("*.md") if needs_more(each.read_text("utf-8"))}
    own = Path(__file__).read_text("utf-8")
    assert asking == set(re.findall(r'page\("([a-z0-9-]+\.md)"', own))
    for each in asking:
        assert f"tests/docs/{HERE}" in (DOCS / "howto" / each).read_text("utf-8").partition("\n")[0]
