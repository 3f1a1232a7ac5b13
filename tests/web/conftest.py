"""A browser, a server and a store to look at.

The garden is planted once for each worker; a test that changes something gets a copy and a server of its own.
Screenshots go to ``build/screenshots``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from examples import garden
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.server.running import running
from tests.web import tools

import treering

SHOTS = tools.ROOT / "build" / "screenshots"
PATIENCE_MS = 30_000
"""How long something may take to appear: it says how busy the machine is, and nothing about the code."""

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session", autouse=True)
def built() -> Path:
    return tools.built()


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("garden") / "store"
    garden.plant(folder)
    return folder


@pytest.fixture(scope="module")
def garden_url(planted: Path) -> Iterator[str]:
    """A server over the garden, for tests that only look."""
    with treering.open(planted) as store, running(store) as url:
        yield url


@pytest.fixture
def own_garden(planted: Path, tmp_path: Path) -> Iterator[tuple[treering.Store, str]]:
    """A garden of one's own and its server."""
    folder = tmp_path / "store"
    shutil.copytree(planted, folder)
    with treering.open(folder) as store, running(store) as url:
        yield store, url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not for the whole session: while it is open an event loop runs, which tests of others do not expect.
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=tools.chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def new_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """Makes pages that fail the test when anything goes wrong in them that the test did not expect."""
    if "own_garden" in request.fixturenames:
        request.getfixturevalue("own_garden")  # so that its server is still there when the pages close
    troubles: list[str] = []
    with ExitStack() as stack:

        def make(*, scheme: str = "light", expected: tuple[str, ...] = (), **options: Any) -> Page:
            context = browser.new_context(
                viewport={"width": 1440, "height": 900},
                locale="en-US",
                timezone_id="UTC",
                color_scheme=scheme,
                reduced_motion="reduce",
                **options,
            )
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)

            def note(text: str) -> None:
                if not any(each in text for each in expected):
                    troubles.append(text)

            page.on("pageerror", lambda error: note(f"error: {error}"))
            page.on("console", lambda said: note(said.text) if said.type in {"error", "warning"} else None)
            page.on(
                "request", lambda sent: None if _is_own(sent.url) else note(f"asked elsewhere: {sent.url}")
            )
            return page

        yield make
    assert troubles == []


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    return new_page()


def _is_own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:http://127.0.0.1:"))


def shot(page: Page, name: str) -> None:
    """Keep a picture for people."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def axe_findings(page: Page, *, rules: tuple[str, ...] = ()) -> list[str]:
    """What axe-core finds wrong (by all its rules, unless some are named), one line each."""
    page.evaluate(tools.axe())
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{each['id']}: {node['html'][:200]} ({node['failureSummary'][:300]})"
        for each in found["violations"]
        for node in each["nodes"]
    ]
