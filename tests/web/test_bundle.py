"""What is shipped: small, complete, without other hosts, and handed out safely."""

from __future__ import annotations

import json
import re
import subprocess

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.servers.npm import NODE
from tests.web import tools

from treering.server import dashboard

HOSTS = re.compile(
    r"https?://(?!www\.w3\.org/|127\.0\.0\.1|preactjs\.com|github\.com/(?:markedjs|highlightjs)/)[\w.-]+"
)


def test_all_scripts_together_are_small(built):
    scripts = list(built.rglob("*.js"))
    assert scripts
    assert sum(tools.gzipped(each) for each in scripts) <= 200_000


def test_the_types_check(npm):
    assert tools.modules().is_dir()
    wanted = json.loads((tools.ROOT / "web" / "package.json").read_text(encoding="utf-8"))
    compiler = npm("typescript", wanted["devDependencies"]["typescript"]) / "typescript" / "bin" / "tsc"
    command = [str(NODE), str(compiler), "--noEmit", "-p", str(tools.ROOT / "web")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_nothing_comes_from_another_host(built):
    for path in [*built.rglob("*.js"), *built.rglob("*.css"), *built.rglob("*.html"), *built.rglob("*.svg")]:
        assert HOSTS.findall(path.read_text(encoding="utf-8")) == [], path.name


def test_the_licences_of_what_is_shipped_go_along(built):
    text = (built / "licences.txt").read_text(encoding="utf-8")
    for name in ("preact", "@preact/signals", "uplot", "inter", "jetbrains-mono"):
        assert name in text
    assert text.count("Copyright") >= 6


def test_a_page_has_no_inline_script_and_a_strict_policy(sample_url):
    answer = httpx.get(f"{sample_url}/", follow_redirects=True)
    assert answer.url.path == "/ui/"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert re.findall(r"<script(?![^>]*\bsrc=)", answer.text) == []
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-encoding"] == "gzip"


def test_assets_are_cached_and_served_uncompressed_on_request(sample_url, built):
    (script,) = (each for each in built.rglob("index-*.js"))
    url = f"{sample_url}/ui/assets/{script.name}"
    packed = httpx.get(url)
    assert packed.headers["cache-control"].endswith("immutable")
    plain = httpx.get(url, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == packed.content == script.read_bytes()
    assert plain.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path", ["../app.py", "%2e%2e/app.py", "assets/../../app.py", "assets", "fingerprint.txt", "x"]
)
def test_only_built_files_are_served(path, sample_url):
    answer = httpx.get(f"{sample_url}/ui/{path}")
    assert answer.status_code == 404
    assert "treering" not in answer.text or answer.headers["content-type"] == "application/problem+json"


def test_an_installation_without_a_dashboard_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(dashboard, "STATIC", tmp_path)
    answer = TestClient(Starlette(routes=list(dashboard.routes()))).get("/ui/")
    assert answer.status_code == 404
    assert "hatch_build.py" in answer.json()["detail"]


def test_a_current_build_is_not_repeated(monkeypatch):
    import hatch_build

    assert hatch_build.is_current()
    monkeypatch.setattr(hatch_build, "Node", None)  # would fail if it were used
    hatch_build.build()
    assert hatch_build.FINGERPRINT.read_text().strip() == hatch_build.fingerprint()


def test_a_changed_source_triggers_a_build(monkeypatch, tmp_path):
    import hatch_build

    (tmp_path / "index.html").write_text("changed")
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path)
    assert not hatch_build.is_current()
    monkeypatch.setenv("TREERING_NO_DASHBOARD", "1")
    hatch_build.build()  # unwanted: nothing is done
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path / "none")
    assert hatch_build.is_current()  # an sdist without sources: what is there is what there is
