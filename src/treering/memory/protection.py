"""Keeping a private file out of git: ``MEMORY.md`` holds what a person told the agent.

A file that git tracks gets the skip-worktree bit, which every clone has to set anew; one that it does not
track is named in ``.git/info/exclude``. Neither changes a file that others see. **Invariant:** `protect` only
ever makes git ignore the one file, and `protection_of` changes nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Literal

import msgspec

from treering.errors import InvalidInput, TreeringError

State = Literal["skip-worktree", "ignored", "not in git", "unprotected"]


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """How a private file stands with git."""

    path: str
    state: State
    detail: str

    @property
    def ok(self) -> bool:
        """A commit cannot take its changes along by accident."""
        return self.state != "unprotected"


def protection_of(path: str | Path) -> Protection:
    """How the file stands; for ``treering doctor`` after a clone."""
    file = Path(path).expanduser().absolute()
    if not file.parent.is_dir() or _git(file, "rev-parse", "--is-inside-work-tree") != "true":
        return Protection(path=str(path), state="not in git", detail="no repository is around it")
    listed = _git(file, "ls-files", "-v", "--", _name(file))
    if listed:
        if listed[0] in "Ss":
            return Protection(
                path=str(path), state="skip-worktree", detail="git does not look at its changes"
            )
        return Protection(
            path=str(path),
            state="unprotected",
            detail="git tracks it and would commit its changes; run treering memory protect",
        )
    if _git(file, "check-ignore", "-q", "--no-index", "--", _name(file)) is not None:
        return Protection(path=str(path), state="ignored", detail="git leaves it alone")
    return Protection(
        path=str(path),
        state="unprotected",
        detail="git add . would take it along; run treering memory protect",
    )


def protect(path: str | Path) -> Protection:
    """Keep the file's changes out of commits, and say how. Doing it again changes nothing."""
    file = Path(path).expanduser().absolute()
    now = protection_of(path)
    if now.state != "unprotected":
        return now
    if _git(file, "ls-files", "--", _name(file)):
        if _git(file, "update-index", "--skip-worktree", "--", _name(file)) is None:
            raise TreeringError(f"git did not set skip-worktree on {path}; is its index locked? try again")
    else:
        _exclude(file)
    after = protection_of(path)
    if not after.ok:
        raise TreeringError(f"{path} is still not protected: {after.detail}; a .gitignore may bring it back")
    return after


def _exclude(file: Path) -> None:
    top = _git(file, "rev-parse", "--show-toplevel")
    place = _git(file, "rev-parse", "--git-path", "info/exclude")
    if top is None or place is None:
        raise TreeringError(f"git does not say where the repository of {file} is; run git status there")
    exclude = file.parent / place
    exclude.parent.mkdir(parents=True, exist_ok=True)
    pattern = "/" + (file.parent.resolve() / file.name).relative_to(Path(top).resolve()).as_posix()
    escaped = "".join(f"\\{each}" if each in "*?[\\" else each for each in pattern)
    before = exclude.read_text(encoding="utf-8") if exclude.exists() else ""
    gap = "" if not before or before.endswith("\n") else "\n"
    with exclude.open("a", encoding="utf-8") as out:
        out.write(f"{gap}{escaped}\n")


def _name(file: Path) -> str:
    if "\n" in file.name:
        raise InvalidInput(f"{file.name!r} is not a name for a memory file; rename it")
    return f":(literal){file.name}"


def _git(file: Path, *arguments: str) -> str | None:
    """What git says, run beside the file; ``None`` when it says no."""
    named = [each.removeprefix(":(literal)") if arguments[0] != "ls-files" else each for each in arguments]
    try:
        done = subprocess.run(  # noqa: S603 - arguments are built here, never a shell line
            ["git", "-C", str(file.parent), *named],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None
