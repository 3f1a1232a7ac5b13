"""Measure `verify` and `gc` at two sizes, one ten times the other: linear time, constant memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.report import Measurement, Section, at_most
from benchmarks.work import open_store
from treering.core.batch import Draft, Event
from treering.core.content import Content, list_address

SMALL = int(os.environ.get("TREERING_BENCH_OBJECTS", "100000"))
"""Contents in the small store; the large one has ten times as many (a million)."""

PER_BATCH = 1000
SPACE = "default"


def run(scratch: Path) -> Section:
    """Fill two stores and maintain each one in its own process."""
    small = _measured(scratch / "small", SMALL)
    large = _measured(scratch / "large", SMALL * 10)
    limit = 60 * SMALL * 10 / 1_000_000
    target, met = at_most(large["verify_with_two"] / limit, 1)
    rows = [
        Measurement(
            claim=f"verify of {SMALL * 10:,} contents with two processes, against 60 s a million",
            ours=f"{large['verify_with_two']:.1f} s",
            peer=f"{limit:.0f} s",
            ratio=large["verify_with_two"] / limit,
            target=target,
            met=met,
            note=f"CPU time of all {large['cpu_with_two']:.1f} s; one process "
            f"{large['verify']:.1f} s, CPU time {large['cpu']:.1f} s; load of the machine "
            f"{os.getloadavg()[1]:.0f}",
        )
    ]
    rows += [
        _row("verify, CPU time: ten times the size", small["cpu"], large["cpu"]),
        _row("gc, CPU time: ten times the size", small["gc_cpu"], large["gc_cpu"]),
    ]
    growth = large["peak_mb"] / small["peak_mb"]
    target, met = at_most(growth, 1.5)
    rows.append(
        Measurement(
            claim="peak memory of both, at ten times the size",
            ours=f"{large['peak_mb']:.0f} MB",
            peer=f"{small['peak_mb']:.0f} MB",
            ratio=growth,
            target=target,
            met=met,
        )
    )
    return Section(
        title="Looking after a store",
        about=f"{SMALL:,} contents against {SMALL * 10:,} (slots and list items; every tenth an object).",
        measurements=rows,
    )


def _row(claim: str, small: float, large: float) -> Measurement:
    ratio = large / small / 10
    target, met = at_most(ratio, 1.3)
    return Measurement(
        claim=f"{claim}, per content",
        ours=f"{large:.2f} s",
        peer=f"{small:.2f} s",
        ratio=ratio,
        target=target,
        met=met,
    )


def _measured(folder: Path, count: int) -> dict[str, float]:
    _fill(folder, count)
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.maintenance", str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(result.stdout)


def _fill(folder: Path, count: int) -> None:
    engine = open_store(folder, "fast")
    for start in range(0, count, PER_BATCH):
        draft = Draft(SPACE)
        scope = f"/thread/{start // (PER_BATCH * 10)}"
        list_id = f"list-{start}"
        items = [Content("text", b"item %d" % number) for number in range(start, start + PER_BATCH // 2)]
        draft.append(list_id, *items, scope=scope, at=0)
        for number in range(start, start + PER_BATCH // 2):
            size = 5000 if number % 5 == 0 else 60
            body = draft.put(Content("text", (b"%d " % number) * (size // 8)), scope=scope)
            draft.event(
                Event(
                    id=f"e{number}",
                    kind="step",
                    ts_us=1_700_000_000_000_000 + number,
                    scope=scope,
                    body=body,
                    links=(list_address(list_id),) if number == start else (),
                )
            )
        engine.commit(draft.batch())
    engine.close()


def _maintain(folder: Path) -> None:
    import time

    from treering.core.records import Problem

    engine = open_store(folder, "fast")
    start, cpu = time.perf_counter(), _cpu()
    problems = [each for each in engine.check(SPACE) if isinstance(each, Problem)]
    verified, cpu_one = time.perf_counter(), _cpu() - cpu
    problems += [each for each in engine.check(SPACE, processes=2) if isinstance(each, Problem)]
    with_two, cpu_two = time.perf_counter() - verified, _cpu() - cpu - cpu_one
    begun = _cpu()
    engine.sweep(SPACE, grace_seconds=0)
    swept = _cpu()
    engine.close()
    if problems:
        raise SystemExit(f"the benchmark's own store is damaged: {problems[:3]}")
    # Not ru_maxrss: a child inherits the value of its parent.
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak_mb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    print(
        json.dumps(
            {
                "verify": verified - start,
                "cpu": cpu_one,
                "verify_with_two": with_two,
                "cpu_with_two": cpu_two,
                "gc_cpu": swept - begun,
                "peak_mb": peak_mb,
            }
        )
    )


def _cpu() -> float:
    """CPU time of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    _maintain(Path(sys.argv[1]))
