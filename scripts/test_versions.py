"""Test the adapters with the oldest or the newest versions of the frameworks that pyproject.toml allows.

``python scripts/test_versions.py oldest [arguments of pytest]``. The versions go into an environment of
their own, `.cache/versions/`. What the test group pins beside the frameworks (pytest, servers, ...) stays so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
EXTRAS = ("all", "frameworks")
# Its test makes an environment of its own, with what the harness pins.
TESTED = ("tests/adapters", "--ignore", "tests/adapters/test_pydantic_ai_harness.py")


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in RESOLUTIONS:
        print("usage: test_versions.py oldest|newest [arguments of pytest]", file=sys.stderr)
        return 2
    which, arguments = sys.argv[1], sys.argv[2:] or TESTED
    python = install(which)
    return subprocess.run([python, "-m", "pytest", "-q", *arguments], cwd=ROOT, check=False).returncode


def install(which: str) -> Path:
    """Resolve the versions, install them, and return the interpreter."""
    folder = ROOT / ".cache" / "versions" / which
    folder.mkdir(parents=True, exist_ok=True)
    others, overrides, versions = (folder / each for each in ("others.in", "overrides.in", "versions.txt"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    others.write_text(besides_frameworks(project["dependency-groups"]["test"]), "utf-8")
    overrides.write_text(besides_frameworks(project["tool"]["uv"]["override-dependencies"]), "utf-8")
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    uv("pip", "compile", "--no-config", "pyproject.toml", others, *extras, "--override", overrides,
       "--resolution", RESOLUTIONS[which], "--upgrade", "--no-header", "--no-annotate",
       "--output-file", versions)  # fmt: skip
    uv("venv", "--clear", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    uv(
        "pip",
        "install",
        "--no-config",
        "--python",
        python,
        "--requirements",
        versions,
        "--override",
        overrides,
    )
    # The dashboard is no part of this.
    uv("pip", "install", "--python", python, "--no-deps", "--editable", ".", TREERING_NO_DASHBOARD="1")
    for line in versions.read_text("utf-8").splitlines():
        if name(line) in frameworks():
            print(line)
    return python


def besides_frameworks(requirements: list[str]) -> str:
    return "\n".join(each for each in requirements if name(each) not in frameworks())


def frameworks() -> set[str]:
    """The names of the packages that the adapters' extras require."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (members,) = (re.findall(r"[\w-]+", each.partition("[")[2]) for each in extras["frameworks"])
    return {name(each) for extra in (*members, "pydantic-ai-harness") for each in extras[extra]}


def name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower() if requirement[:1].isalnum() else ""


def uv(*arguments: str | Path, **environment: str) -> None:
    command = [sys.executable, "-m", "uv", *map(str, arguments), "--quiet"]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
