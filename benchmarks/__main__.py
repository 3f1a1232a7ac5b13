"""Run benchmarks: ``python -m benchmarks [name ...]``; without names, all of them."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import benchmarks
from benchmarks.report import write_results

if TYPE_CHECKING:
    from benchmarks.report import Section

NOT_BENCHMARKS = {"__main__", "langgraph_work", "memory_peers", "otlp_peers", "otlp_work", "report", "work"}
ALONE = {"a_million", "spans_million", "tiny_files"}
"""Long benchmarks, which run only when they are named."""


def main() -> int:
    """Run the benchmarks and write the results."""
    names = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - NOT_BENCHMARKS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*names, []], help="benchmarks to run (default: all but the long ones)"
    )
    parser.add_argument("--no-write", action="store_true", help="print the results, do not update RESULTS.md")
    arguments = parser.parse_args()
    sections: list[Section] = []
    for name in arguments.names or sorted({*names} - ALONE):
        print(f"== {name}", file=sys.stderr, flush=True)
        scratch = Path(tempfile.mkdtemp(prefix="treering-bench-"))
        try:
            section: Section = importlib.import_module(f"benchmarks.{name}").run(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        for each in section.measurements:
            state = "met" if each.met else "NOT MET"
            print(
                f"{each.claim}: {each.ours} / {each.peer} = {each.ratio:.2f}x ({each.target}: {state})",
                flush=True,
            )
        sections.append(section)
    if not arguments.no_write:
        write_results(sections)
    return 0


if __name__ == "__main__":
    sys.exit(main())
