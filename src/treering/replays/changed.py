"""Which recorded tests a change may affect: those whose code or recording differs from another commit.

A test depends on its own file and the ``conftest.py`` files above it, on every module of the repository that
these import, directly or not (the imports are read, nothing is run), on what lies beside such a module and is
no Python (prompts, templates), on its recording and what that runs, and on the files that name the installed
packages.
**Invariant:** what cannot be decided selects a test; only modules that are imported by a computed name are
missed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from treering.errors import InvalidInput, NotFound
from treering.replays.fixtures import FOLDER, SUFFIX, list_tests

_PACKAGES: Final = re.compile(
    r"pyproject\.toml|setup\.(py|cfg)|requirements[^/]*\.(txt|in)|[^/]*\.lock|Pipfile|environment\.ya?ml|pytest\.ini|tox\.ini"
)
_ENTRY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_MODULE: Final = re.compile(r"[A-Za-z_][\w.]*")


class _Head(msgspec.Struct):
    """What the first line of a recording says about what it runs."""

    entry: str | None = None
    arguments: Any = None


def changed_files(root: Path, base: str) -> set[Path]:
    """Return the files below a folder that differ from where its branch left ``base``, with uncommitted ones.

    Raises:
        NotFound: There is no such commit here.
    """
    top = Path(_git(root, "rev-parse", "--show-toplevel").strip())
    if not _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}", can_fail=True):
        raise NotFound(
            f"git knows no commit {base!r}; fetch it (in GitHub Actions: actions/checkout with "
            "fetch-depth: 0), or name another with --base"
        )
    start = _git(root, "merge-base", base, "HEAD", can_fail=True).strip() or base
    names = _git(root, "diff", "--name-only", "-z", "--no-renames", start) + _git(
        root, "ls-files", "-z", "--others", "--exclude-standard", "--full-name", ":/"
    )
    return {top / name for name in names.split("\0") if name}


def default_base(root: Path) -> str:
    """Return what a branch is compared with: the target of a pull request, else the default branch."""
    target = os.environ.get("GITHUB_BASE_REF")
    candidates = [f"origin/{target}"] if target else []
    for each in (*candidates, "origin/HEAD", "origin/main", "origin/master", "main", "master"):
        if _git(root, "rev-parse", "--verify", "--quiet", f"{each}^{{commit}}", can_fail=True):
            return each
    raise NotFound("git has no main branch to compare with; name a commit with --base")


def _git(root: Path, *arguments: str, can_fail: bool = False) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)  # noqa: S603, S607
    except FileNotFoundError:
        raise InvalidInput("git is not installed; run without --changed") from None
    if done.returncode and not can_fail:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise InvalidInput(f"{root} is no git repository, or git cannot read it: {said}")
    return done.stdout.decode("utf-8", "surrogateescape") if not done.returncode else ""


class Changes:
    """Decides which test files a set of changed files may affect.

    Args:
        root: the folder of the project.
        changed: the files that differ.
        path: folders in which modules are looked for, besides the root, its ``src`` and that of the test.
    """

    def __init__(self, root: Path, changed: Iterable[Path], *, path: Sequence[Path] = ()) -> None:
        self.root = root
        self.changed = set(changed)
        self._path = [root, root / "src", *(each for each in path if each.is_relative_to(root))]
        self._imports: dict[Path, tuple[set[Path], set[str]]] = {}
        self._recordings: dict[str, list[Path]] = {}
        for each in list_tests(root):
            self._recordings.setdefault(each.stem, []).append(each)

    def affect(self, test_file: Path) -> str | None:
        """Return why a test file may be affected: the path of a changed file; ``None`` if it is not."""
        packages = [each for each in self.changed if _PACKAGES.fullmatch(each.name)]
        if packages:
            return self._named(min(packages))
        modules, texts = self._closure(test_file)
        for each in sorted(self.changed):
            if (
                each in modules
                or self._is_recording(each, texts)
                or self._is_beside(each, modules, test_file, texts)
            ):
                return self._named(each)
        return None

    def _named(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix() if file.is_relative_to(self.root) else str(file)

    @staticmethod
    def _is_recording(file: Path, texts: set[str]) -> bool:
        return file.parent.name == FOLDER and file.suffix == SUFFIX and file.stem in texts

    def _is_beside(self, file: Path, modules: set[Path], test_file: Path, texts: set[str]) -> bool:
        """Whether a module reads this file, for all that is known."""
        if file.suffix == ".py" or file.parent.name == FOLDER:
            return False
        if any(each.endswith(file.name) for each in texts):
            return True
        folders = {each.parent for each in modules} - {self.root, test_file.parent}
        return any(file.is_relative_to(each) for each in folders)

    def _closure(self, test_file: Path) -> tuple[set[Path], set[str]]:
        """Return the modules that a test file imports, directly or not, and the texts in them."""
        waiting = [test_file, *self._conftests(test_file)]
        found: set[Path] = set()
        texts: set[str] = set()
        while waiting:
            file = waiting.pop()
            if file in found:
                continue
            found.add(file)
            if file not in self._imports:
                self._imports[file] = self._read(file, test_file.parent)
            imported, said = self._imports[file]
            waiting += imported
            texts |= said
            for name in said & self._recordings.keys():
                for recording in self._recordings[name]:
                    waiting += self._run_by(recording, test_file.parent)
        return found, texts

    def _run_by(self, recording: Path, beside: Path) -> set[Path]:
        """Return the files of the repository that a recording runs: its entry, or those in its command."""
        try:
            with recording.open("rb") as file:
                head = msgspec.json.decode(file.readline(), type=_Head)
        except (OSError, msgspec.DecodeError):
            return set()
        module, _, _ = (head.entry or "").rpartition(":")
        given: Any = head.arguments
        command = given.get("command") if isinstance(given, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        words = [module, *(cast("list[Any]", command) if isinstance(command, list) else [])]
        files = {self.root / each for each in words if isinstance(each, str) and each and "\0" not in each}
        found = {each for each in files if each.is_file()}
        return found | (self._files_of(module, beside) if _MODULE.fullmatch(module) else set[Path]())

    def _conftests(self, test_file: Path) -> Iterator[Path]:
        for folder in test_file.parents:
            if (folder / "conftest.py").is_file():
                yield folder / "conftest.py"
            if folder == self.root:
                return

    def _read(self, file: Path, beside: Path) -> tuple[set[Path], set[str]]:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return set(), set()
        imported: set[Path] = set()
        texts: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    imported |= self._files_of(each.name, beside)
            elif isinstance(node, ast.ImportFrom):
                package = self._package_of(node, file)
                for name in (package, *(f"{package}.{each.name}".strip(".") for each in node.names)):
                    imported |= self._files_of(name, beside)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
                if _ENTRY.fullmatch(node.value):
                    imported |= self._files_of(node.value.partition(":")[0], beside)
        return imported, texts

    def _package_of(self, node: ast.ImportFrom, file: Path) -> str:
        module = node.module or ""
        if not node.level:
            return module
        folder = file.parents[node.level - 1]
        for above in self._path:
            if folder.is_relative_to(above):
                return ".".join((*folder.relative_to(above).parts, *filter(None, [module])))
        return module

    def _files_of(self, module: str, beside: Path) -> set[Path]:
        """Return the files that importing a module of the repository runs."""
        parts = module.split(".")
        found: set[Path] = set()
        for above in (*self._path, beside):
            for length in range(1, len(parts) + 1):
                place = above.joinpath(*parts[:length])
                found |= {
                    each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()
                }
        return found
