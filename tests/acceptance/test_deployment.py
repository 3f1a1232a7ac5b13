"""E9: deploy/compose.yaml, with the volumes of the document: all that lasts is in `data` and `workspace`.

No containers run here. Each service's own command runs as a process, in a folder that stands for /app.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import httpx
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = YAML(typ="safe").load(ROOT / "deploy" / "compose.yaml")
AGENT, SERVER = COMPOSE["services"]["agent"], COMPOSE["services"]["server"]
KEY = "7qhX2mZk9TvB4cWnR8sLdP3fYgJ6aEuV"
PROGRAMS = {"python": [sys.executable], "treering": [sys.executable, "-m", "treering"]}


def mounts(service) -> dict[str, tuple[str, str]]:
    """Where in the container -> (what of the host, how)."""
    found = (each.split(":") for each in service["volumes"])
    return {where: (what, *(how or ["rw"])) for what, where, *how in found}


@contextmanager
def running(service, app: Path, **options):
    """The command of a service, killed at the end as a container may be."""
    program, *words = service["command"]
    words = [{"8787": "0"}.get(word, word.replace("/app", str(app))) for word in words]
    process = subprocess.Popen(
        [*PROGRAMS[program], *words],
        cwd=app,
        text=True,
        bufsize=1,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "TREERING_API_KEY": KEY},
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def chatted(app: Path, text: str) -> list[str]:
    with running(AGENT, app, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        opened = process.stdout.readline()
        process.stdin.write(f"{text}\n")
        return [opened, process.stdout.readline()]


def test_the_volumes_are_those_of_the_document():
    assert mounts(AGENT) == {
        "/app/data": ("data", "rw"),
        "/app/workspace": ("../workspace", "rw"),
        "/app/workspace/host/documents": ("~/Documents", "ro"),
        "/app/workspace/host/projects": ("~/Projects", "rw"),
    }
    assert mounts(SERVER) == {"/app/data": ("data", "rw")}
    assert "data" in COMPOSE["volumes"]


def test_the_image_installs_what_its_commands_need():
    image = AGENT["build"]["dockerfile_inline"]
    assert image == SERVER["build"]["dockerfile_inline"]
    (extras,) = re.findall(r"treering\[(.+?)\]", image)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert "server" in extras.split(",")


def test_only_one_who_has_a_key_and_is_on_this_machine_reaches_the_server():
    assert SERVER["environment"]["TREERING_API_KEY"].startswith("${TREERING_API_KEY:?")
    assert [each.rpartition(":")[0] for each in SERVER["ports"]] == ["127.0.0.1:8787"]


def test_what_the_containers_run_outlives_them(tmp_path):
    ((source, name),) = re.findall(r"COPY (\S+) (\S+)", AGENT["build"]["dockerfile_inline"])
    for life, text in enumerate(("hello", "again"), start=1):
        app = tmp_path / f"app{life}"  # a new container: of the old one only its volumes are left
        app.mkdir()
        shutil.copy(ROOT / "deploy" / AGENT["build"]["context"] / source, app / name)
        if life > 1:
            (tmp_path / "app1" / "data").rename(app / "data")
        assert chatted(app, text) == [
            "thread terminal_me\n",
            f"You have said {life} thing(s); the first was 'hello'.\n",
        ]
        assert {each.name for each in app.iterdir()} == {name, "data"}
    with running(SERVER, app, stderr=subprocess.PIPE) as process:
        port = re.search(r"http://0\.0\.0\.0:(\d+);", process.stderr.readline())[1]
        url = f"http://127.0.0.1:{port}/threads/terminal_me"
        assert httpx.get(url).status_code == 401
        shown = httpx.get(url, headers={"Authorization": "Bearer " + KEY}).json()
    assert [each["content"] for each in shown["messages"]][::2] == ["hello", "again"]
