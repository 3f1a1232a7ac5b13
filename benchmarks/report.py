"""The result of a benchmark, and how it is written to `RESULTS.md`.

On a shared machine only ratios within one run are meaningful, so a measurement is always a pair: ours and the
peer's on the same work, in alternating turns. The best of several turns counts, because noise only adds.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One row of the table; ``met`` is whether the ratio reaches the target."""

    claim: str
    ours: str
    peer: str
    ratio: float
    target: str
    met: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """The results of one benchmark."""

    title: str
    about: str
    measurements: Sequence[Measurement]


def at_most(ratio: float, limit: float) -> tuple[str, bool]:
    """Return an upper bound on the ratio, and whether it is met."""
    return f"<= {limit:g}x", ratio <= limit


def at_least(ratio: float, limit: float) -> tuple[str, bool]:
    """Return a lower bound on the ratio, and whether it is met."""
    return f">= {limit:g}x", ratio >= limit


def in_turns(turns: int, *jobs: Callable[[], float]) -> list[float]:
    """Run the jobs in alternation, ``turns`` times; return the best result (seconds) of each."""
    best = [float("inf")] * len(jobs)
    for _ in range(turns):
        for index, job in enumerate(jobs):
            best[index] = min(best[index], job())
    return best


def seconds_of(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def write_results(sections: Sequence[Section]) -> None:
    """Replace the sections of this run in RESULTS.md and keep the others."""
    kept = _sections_of(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept.update({section.title: _render(section) for section in sections})
    head = (
        "# Results\n\n"
        "Written by `make bench`. Each row compares treering with a peer on the same work, in one run on one "
        "machine; differences under 20 % are ties.\n"
    )
    RESULTS.write_text(head + "".join(f"\n{text}" for _, text in sorted(kept.items())), encoding="utf-8")


def _render(section: Section) -> str:
    lines = [
        f"## {section.title}",
        "",
        section.about,
        "",
        "| claim | ours | peer | ratio | target | met |",
        "|---|---|---|---|---|---|",
    ]
    for each in section.measurements:
        met = "yes" if each.met else "**no**"
        lines.append(
            f"| {each.claim} | {each.ours} | {each.peer} | {each.ratio:.2f}x | {each.target} | {met} |"
        )
    notes = [f"- {each.claim}: {each.note}" for each in section.measurements if each.note]
    if notes:
        lines += ["", *notes]
    lines += ["", f"*{_machine()}*", ""]
    return "\n".join(lines)


def _machine() -> str:
    versions = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    for package in ("treering", "psycopg", "obstore"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{day}; {os.cpu_count()} cores, {platform.system()} {platform.machine()}; {', '.join(versions)}"


def _sections_of(text: str) -> dict[str, str]:
    parts = text.split("\n## ")[1:]
    return {part.splitlines()[0]: "## " + part.rstrip("\n") + "\n" for part in parts}
