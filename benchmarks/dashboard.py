"""The dashboard in a real browser, over a store with 10,000 runs and a run of 50,000 events.

Times are taken inside of the page: a view is there when its data is in the document (not when something is
painted), and an interaction takes from the key or click to the frame that shows what it did, as the browser
itself reports it (Event Timing).
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from examples import sample_store
from playwright.sync_api import Browser, Page, sync_playwright
from tests.web import tools

import treering
from benchmarks.report import Measurement, Section, at_most

RUNS = 10_000
EVENTS = 50_000
VIEWS = {
    "Runs": ("runs", ".runs-table .row"),
    "Run": ("runs/run-large", ".waterfall .row"),
    "Threads": ("threads", ".threads-table .row"),
    "Thread": ("threads/support%2Falice", ".checkpoints .row"),
    "Workspace": ("workspace", ".snapshots-table .row"),
    "Memory": ("memory", ".documents .row"),
    "Cost": ("cost?days=all", ".cost-view table .share"),
    "Schedules": ("schedules", ".schedule-panes .row"),
    "Store": ("store", ".figures.big"),
}
LIVE = 12


def run(scratch: Path) -> Section:
    """Fill a store, serve it, look at it."""
    static = tools.built()
    folder = scratch / "store"
    sample_store.add_many_runs(folder, runs=RUNS)
    sample_store.add_large_run(folder, events=EVENTS)
    sample_store.create(folder)
    with served(folder) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=tools.chromium(), args=["--no-sandbox"])
        measurements = [
            _views(browser, url),
            _whole_run(browser, url),
            _interactions(browser, url),
            _live(browser, url, folder),
            _size(static),
        ]
        browser.close()
    return Section(
        title="Dashboard",
        about=f"{RUNS:,} runs in the store, {EVENTS:,} events in the open run; Chromium, headless, no cache. "
        "There is no peer: what is compared with is the limit that we set ourselves.",
        measurements=measurements,
    )


def _views(browser: Browser, url: str) -> Measurement:
    """From the navigation to the data of a view, each in a new page; the slowest view counts."""
    took = {
        name: min(first_sight(browser, f"{url}/ui/#/{place}", sign) for _ in range(3))
        for name, (place, sign) in VIEWS.items()
    }
    slowest = max(took, key=lambda name: took[name])
    each = ", ".join(f"{name} {ms:.0f}" for name, ms in took.items())
    return _within("first sight of a view's data, the slowest view", took[slowest], 1500, note=f"ms: {each}")


def first_sight(browser: Browser, address: str, sign: str) -> float:
    """Return the milliseconds from the navigation to the first element that matches ``sign``."""
    page = _page(browser)
    page.add_init_script(_watch(sign))
    page.goto(address)
    page.wait_for_function("() => window.seenAt !== undefined")
    seen = page.evaluate("window.seenAt")
    page.context.close()
    return seen


def _watch(sign: str) -> str:
    """A script that notes when something is in the page for the first time."""
    return (
        f"(() => {{ const look = () => {{ if (document.querySelector({sign!r})) seenAt = performance.now();"
        " else requestAnimationFrame(look); }; requestAnimationFrame(look); })()"
    )


def _whole_run(browser: Browser, url: str) -> Measurement:
    page = _page(browser)
    page.add_init_script(_watch(f'.rows[data-total="{EVENTS}"]'))
    page.goto(f"{url}/ui/#/runs/run-large")
    page.wait_for_function("() => window.seenAt !== undefined", timeout=120_000)
    seen = page.evaluate("window.seenAt")
    page.context.close()
    return _within(f"all {EVENTS:,} events of a run are there to scroll", seen, 10_000)


def _interactions(browser: Browser, url: str) -> Measurement:
    page = _page(browser)
    page.goto(f"{url}/ui/#/runs/run-large")
    page.locator(f'.rows[data-total="{EVENTS}"]').wait_for(timeout=120_000)
    page.evaluate(
        """() => {
            window.slow = [];
            new PerformanceObserver(list => {
                for (const each of list.getEntries()) window.slow.push([each.name, each.duration]);
            }).observe({ type: "event", durationThreshold: 16 });
        }"""
    )
    took: dict[str, float] = {}
    longest = 0.0
    for name, action in {
        "next row": lambda: page.keyboard.press("j"),
        "next page": lambda: page.keyboard.press("PageDown"),
        "last row": lambda: page.keyboard.press("End"),
        "first row": lambda: page.keyboard.press("Home"),
        "zoom": lambda: page.keyboard.press("+"),
        "whole run": lambda: page.keyboard.press("0"),
        "close all": lambda: page.keyboard.press("Shift+C"),
        "open all": lambda: page.keyboard.press("Shift+E"),
        "event": lambda: page.keyboard.press("2"),
        "conversation": lambda: page.keyboard.press("1"),
        "cost": lambda: page.keyboard.press("3"),
        "a step back in time": lambda: page.keyboard.press("["),
        "select by click": lambda: page.locator(".lane-title").nth(3).click(),
    }.items():
        worst = []
        for _ in range(5):
            page.evaluate("window.slow = []")
            action()
            page.evaluate("() => new Promise(done => setTimeout(done, 150))")
            worst.append(max([duration for _, duration in page.evaluate("window.slow")], default=8))
        took[name] = median(worst)
        longest = max(longest, *worst)
    page.context.close()
    slowest = max(took, key=lambda name: took[name])
    each = ", ".join(f"{name} {ms:.0f}" for name, ms in took.items())
    return _within(
        "an interaction in that run, the slowest kind (median of 5)",
        took[slowest],
        100,
        note=f"ms: {each}; the longest single one {longest:.0f}",
    )


def _live(browser: Browser, url: str, folder: Path) -> Measurement:
    page = _page(browser)
    page.goto(f"{url}/ui/#/runs")
    page.locator(".pulse.on").wait_for()
    waits: list[float] = []
    with treering.open(folder) as store:
        for number in range(LIVE):
            name = f"live-{number}"
            page.evaluate(
                """name => {
                    window.shownAt = null;
                    const look = () => {
                        if (document.querySelector(`a[href="#/runs/${name}"]`)) window.shownAt = Date.now();
                        else requestAnimationFrame(look);
                    };
                    look();
                }""",
                name,
            )
            began = time.time() * 1000
            run = store.run(agent="live", id=name).start()
            store.flush()
            page.wait_for_function("() => window.shownAt !== null")
            waits.append(page.evaluate("window.shownAt") - began)
            run.end()
            store.flush()
    page.context.close()
    return _within(
        f"a run that begins is on the screen, its commit included (median of {LIVE})",
        median(waits),
        300,
        note=f"ms: from {min(waits):.0f} to {max(waits):.0f}",
    )


def _size(static: Path) -> Measurement:
    scripts = sum(tools.gzipped(path) for path in static.rglob("*.js"))
    beside = sum(path.stat().st_size for path in static.rglob("*") if path.suffix in {".woff2", ".css"})
    target, met = at_most(scripts / 200_000, 1)
    return Measurement(
        claim="JavaScript, gzipped",
        ours=f"{scripts / 1000:.0f} kB",
        peer="200 kB",
        ratio=scripts / 200_000,
        target=target,
        met=met,
        note=f"fonts and styles beside it: {beside / 1000:.0f} kB",
    )


def _within(claim: str, ms: float, limit: float, *, note: str = "") -> Measurement:
    target, met = at_most(ms / limit, 1)
    return Measurement(
        claim=claim,
        ours=f"{ms:.0f} ms",
        peer=f"{limit:,.0f} ms",
        ratio=ms / limit,
        target=target,
        met=met,
        note=note,
    )


def _page(browser: Browser) -> Page:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    page.set_default_timeout(60_000)
    return page


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a store, and yield its address."""
    command = [sys.executable, "-m", "treering", "serve", "--store", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = server.stderr.readline() if server.stderr else ""
            address = re.search(r"http://\S+(?=;)", line)
            if address is None:
                raise RuntimeError(f"the server did not start: {line}")
            yield address[0]
        finally:
            server.terminate()
