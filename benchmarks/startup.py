"""What it costs to import treering, and to have it installed."""

from __future__ import annotations

import os
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
        measurements=[_import(), _install(scratch)],
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
