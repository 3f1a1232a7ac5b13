"""What it costs to import treering, and to have it installed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.report import Measurement, Section, at_most, in_turns, seconds_of

ROOT = Path(__file__).parents[1]
LIMIT_MB = 40
MEGABYTE = 1 << 20


def run(scratch: Path) -> Section:
    """Measure start-up and a fresh install of the base."""
    return Section(
        title="Start and size",
        about="The peer is `python -c pass`; the install is the base in a new environment, no extras.",
        measurements=[_import(), _install(scratch), _first_message(scratch)],
    )


def _import() -> Measurement:
    bare, ours = in_turns(15, lambda: _python("pass"), lambda: _python("import treering"))
    target, met = at_most(ours / bare, 4)
    return Measurement(
        claim="`import treering`",
        ours=f"{ours * 1e3:.0f} ms",
        peer=f"{bare * 1e3:.0f} ms",
        ratio=ours / bare,
        target=target,
        met=met,
        note=f"with a store opened: {in_turns(5, lambda: _python(_OPEN))[0] * 1e3:.0f} ms",
    )


_OPEN = "import treering; treering.open('memory:').close()"


def _python(code: str) -> float:
    return seconds_of(lambda: subprocess.run([sys.executable, "-c", code], check=True))


def _install(scratch: Path) -> Measurement:
    folder = scratch / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    environment = os.environ | {"UV_PYTHON": str(python)}
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--only-binary", ":all:", "--no-binary",
         "treering", str(ROOT)],
        check=True,
        env=environment,
    )  # fmt: skip
    site = next((folder / "lib").glob("python*/site-packages"))
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file() and not file.is_symlink())
    target, met = at_most(size / MEGABYTE / LIMIT_MB, 1)
    return Measurement(
        claim=f"base install, against {LIMIT_MB} MB",
        ours=f"{size / MEGABYTE:.0f} MB",
        peer=f"{LIMIT_MB} MB",
        ratio=size / MEGABYTE / LIMIT_MB,
        target=target,
        met=met,
        note="all dependencies come as wheels: no compiler was used",
    )


_MODULES = "msgspec, orjson, sqlite3, backports.zstd, hashlib, concurrent.futures, logging"
_APPEND = """
import treering
with treering.open({folder!r}) as store:
    store.thread("t").append({{"role": "user", "content": "hello"}})
"""


def _first_message(scratch: Path) -> Measurement:
    """CPU time of a process that creates a store and appends a message, in the environment of `_install`."""
    least = {"bare": float("inf"), "libraries": float("inf"), "ours": float("inf")}
    for turn in range(15):
        codes = {
            "bare": "pass",
            "libraries": f"import {_MODULES}",
            "ours": _APPEND.format(folder=str(scratch / f"first-{turn}")),
        }
        for name, code in codes.items():
            least[name] = min(least[name], _cpu_of(scratch / "venv" / "bin" / "python", code))
    ratio = least["ours"] / least["bare"]
    target, met = at_most(ratio, 7)
    return Measurement(
        claim="CPU of a process that creates a store and appends one message",
        ours=f"{least['ours'] * 1e3:.0f} ms",
        peer=f"{least['bare'] * 1e3:.0f} ms",
        ratio=ratio,
        target=target,
        met=met,
        note=f"importing the libraries it needs: {least['libraries'] * 1e3:.0f} ms ({_MODULES})",
    )


def _cpu_of(python: Path, code: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-c", code], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
