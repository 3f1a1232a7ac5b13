"""A browser, a server and a sample store.

The sample store is created once per worker; a test that changes something gets its own copy and server.
Screenshots go to ``build/screenshots``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from examples import sample_store
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.server.running import running
from tests.web import tools

import treering

SHOTS = tools.ROOT / "build" / "screenshots"
TIMEOUT_MS = 30_000
"""An upper bound that only a hang exceeds; how long something takes depends on the machine."""

expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="session", autouse=True)
def built() -> Path:
    return tools.built()


@pytest.fixture(scope="session")
def sample_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "store"
    sample_store.create(folder)
    return folder


@pytest.fixture(scope="module")
def sample_url(sample_folder: Path) -> Iterator[str]:
    """A server over the sample store, for tests that only read."""
    with treering.open(sample_folder) as store, running(store) as url:
        yield url


@pytest.fixture
def own_store(sample_folder: Path, tmp_path: Path) -> Iterator[tuple[treering.Store, str]]:
    """A copy of the sample store, and its server."""
    folder = tmp_path / "store"
    shutil.copytree(sample_folder, folder)
    with treering.open(folder) as store, running(store) as url:
        yield store, url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not for the whole session: while it is open an event loop runs, which other tests do not expect.
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=tools.chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def new_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """Create pages that fail the test on any unexpected error, warning or request."""
    if "own_store" in request.fixturenames:
        request.getfixturevalue("own_store")  # so that its server outlives the pages
    problems: list[str] = []
    with ExitStack() as stack:

        def make(
            *, scheme: Literal["light", "dark"] = "light", expected: tuple[str, ...] = (), **options: Any
        ) -> Page:
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
            page.set_default_timeout(TIMEOUT_MS)

            def note(text: str) -> None:
                if not any(each in text for each in expected):
                    problems.append(text)

            page.on("pageerror", lambda error: note(f"error: {error}"))
            page.on("console", lambda said: note(said.text) if said.type in {"error", "warning"} else None)
            page.on(
                "request",
                lambda sent: None if _is_own(sent.url) else note(f"request to another host: {sent.url}"),
            )
            return page

        yield make
    assert problems == []


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    return new_page()


def _is_own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:http://127.0.0.1:"))


def shot(page: Page, name: str) -> None:
    """Save a screenshot."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def axe_findings(page: Page, *, rules: tuple[str, ...] = ()) -> list[str]:
    """Return the violations that axe-core finds (by all rules, or the given ones), one line each."""
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


_LAYOUT = """() => {
    const wide = document.documentElement.clientWidth;
    const named = (e) => `${e.tagName.toLowerCase()}.${(e.getAttribute('class') ?? '').replaceAll(' ', '.')}`;
    const styleOf = (e) => getComputedStyle(e);
    const isMoved = (e) => ['absolute', 'fixed'].includes(styleOf(e).position);
    const isInside = (e) => {  // of something that scrolls or cuts off sideways
        for (let above = e.parentElement; above; above = above.parentElement) {
            if (styleOf(above).overflowX !== 'visible') return true;
        }
        return false;
    };
    const found = [];
    if (document.documentElement.scrollWidth > wide) found.push('the page scrolls sideways');
    for (const e of document.querySelectorAll('#app *')) {
        const box = e.getBoundingClientRect();
        if (!box.width || !box.height || e.closest('svg')) continue;
        const style = styleOf(e);
        if (box.right > wide + 1 && !isInside(e)) {
            found.push(`${named(e)} ends at ${Math.round(box.right)} px`);
        }
        const isTooWide = e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1;
        if (isTooWide && e.matches('.rows, .panes, .view, .scroll, .side-body, dialog')) {
            found.push(`${named(e)} scrolls sideways`);
        }
        if (!/^"?(Inter|JetBrains Mono)/.test(style.fontFamily)) {
            found.push(`${named(e)} is set in ${style.fontFamily}`);
        }
        if (e.matches('.number') && style.display !== 'inline' && e.scrollWidth > e.clientWidth + 1) {
            found.push(`${named(e)} cuts a number off: ${e.textContent}`);
        }
        const row = e.closest('.rows .row');
        if (row && !isMoved(e) && box.bottom > row.getBoundingClientRect().bottom + 2) {
            found.push(`${named(e)} does not fit into its row: ${e.textContent.slice(0, 40)}`);
        }
        if (!['flex', 'grid'].includes(style.display)) continue;
        const children = [...e.children].filter(
            (each) => !isMoved(each) && each.getBoundingClientRect().width > 1,
        );
        for (const [index, one] of children.entries()) {
            for (const other of children.slice(index + 1)) {
                const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
                const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (across > 2 && down > 2) {
                    found.push(`${named(one)} overlaps ${named(other)} in ${named(e)}`);
                }
            }
        }
    }
    return [...new Set(found)];
}"""


def layout_findings(page: Page) -> list[str]:
    """Return what is laid out badly: wider than the page or its pane, or on top of something else."""
    return page.evaluate(_LAYOUT)
