"""`treering serve` as a process: it starts, refuses what is unsafe, and loses nothing when it is killed."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import treering
from treering.errors import InvalidInput


class Server:
    """A server of its own process, on a free port."""

    def __init__(self, store, *options, **environment):
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "treering",
                "serve",
                "--port",
                "0",
                "--store",
                str(store),
                *options,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        said = self.process.stderr.readline()
        found = re.search(r"http://\S+(?=;)", said)
        assert found, said + self.process.stderr.read()
        self.url = found[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def refused(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "treering", "serve", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
        check=False,
    )


def test_it_serves_until_it_is_told_to_stop(tmp_path):
    with Server(tmp_path / "store") as server:
        assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{server.url}/readyz").json() == {"status": "ready"}
        assert httpx.put(f"{server.url}/state/k", json={"value": 1}).status_code == 200
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'treering_requests_total{method="PUT",route="/state/{key}",status="200"} 1' in metrics
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) in {0, -signal.SIGTERM}
    with treering.open(tmp_path / "store") as store:
        assert store.state.get("k") == 1


def test_every_acknowledged_write_survives_a_kill(tmp_path):
    def save(client, number):
        try:
            answer = client.put(f"/state/key-{number}", json={"value": number})
        except httpx.HTTPError:
            return None
        return number if answer.status_code == 200 else None

    with (
        Server(tmp_path / "store") as server,
        httpx.Client(base_url=server.url) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        waiting = [pool.submit(save, client, number) for number in range(400)]
        for each in waiting[:60]:
            each.result()
        server.process.kill()
        kept = [number for each in waiting if (number := each.result()) is not None]
    assert 60 <= len(kept) < 400
    with treering.open(tmp_path / "store") as store:
        assert [store.state.get(f"key-{number}") for number in kept] == kept
        assert store.verify().ok


def test_it_works_over_postgresql(postgres_url):
    with Server(postgres_url) as server:
        body = {"append": ["hello"]}
        assert httpx.post(f"{server.url}/threads/a%2Fb/checkpoints", json=body).status_code == 201
        assert httpx.get(f"{server.url}/threads/a%2Fb").json()["messages"] == ["hello"]


def test_the_environment_gives_a_key(tmp_path):
    with Server(tmp_path / "store", TREERING_API_KEY="secret-0123456789") as server:
        assert httpx.get(f"{server.url}/runs").status_code == 401
        output = httpx.get(f"{server.url}/runs", headers={"authorization": "Bearer secret-0123456789"})
        assert output.json() == {"runs": [], "next_cursor": None, "unreadable": []}


def test_it_does_not_open_itself_to_others_without_a_key(tmp_path):
    output = refused("--host", "0.0.0.0", "--port", "0", "--store", str(tmp_path / "store"))
    assert output.returncode == 2
    assert "treering keys create" in output.stderr


def test_a_taken_port_is_said(tmp_path):
    with Server(tmp_path / "store") as server:
        port = server.url.rpartition(":")[2]
        output = refused("--port", port, "--store", str(tmp_path / "other"))
        assert output.returncode == 8
        assert "choose another --port" in output.stderr


def test_keys_on_the_command_line(tmp_path):
    def keys(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "treering", "keys", *command, "--store", str(tmp_path / "store")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    for command in (["list"], ["revoke", "nothing"]):
        missing = keys(*command)
        assert (missing.returncode, "no store found" in missing.stderr) == (3, True), missing.stderr
    created = keys("create", "--scope", "read", "--json")
    assert '"scope": "read"' in created.stdout
    assert "cannot be shown again" in created.stderr
    made = json.loads(created.stdout)["id"]
    assert keys("list").stdout.splitlines()[1].startswith(made)
    unknown = keys("revoke", "nothing")
    assert (unknown.returncode, "key 'nothing' not found" in unknown.stderr) == (3, True)
    assert keys("revoke", made[:14]).stdout == f"revoked {made}\n"
    assert keys("list").stdout == "no keys\n"


@pytest.mark.parametrize("command", [("serve",), ("mcp", "--http", "127.0.0.1:0")])
@pytest.mark.parametrize("key", ["", "x", "changeme"])
def test_no_command_serves_with_an_empty_or_weak_key(tmp_path, command, key):
    store = ("--store", str(tmp_path / "store"))
    environment = {name: value for name, value in os.environ.items() if name != "TREERING_API_KEY"}
    for arguments, variables in (
        ((*command, "--api-key", key, *store), {}),
        ((*command, *store), {"TREERING_API_KEY": key}),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "treering", *arguments],
            capture_output=True,
            text=True,
            env=environment | variables,
            timeout=60,
            check=False,
        )
        assert ended.returncode == InvalidInput.exit_code, ended.stderr
        assert "empty" in ended.stderr or "too weak" in ended.stderr
    assert not (tmp_path / "store").exists()


def test_a_client_does_not_take_an_empty_key_for_none(monkeypatch):
    monkeypatch.setenv("TREERING_API_KEY", "tr_a_key_of_somebody_else")
    with pytest.raises(InvalidInput, match="api_key is empty"):
        treering.open("http://127.0.0.1:1", api_key="")
