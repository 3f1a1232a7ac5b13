"""Decide what a snapshot excludes, and why.

Three lists of ``.gitignore`` patterns apply, in this order, and the last match wins: the defaults below, the
lines of the workspace's ``.treeringignore``, and the caller's ``exclude`` and ``include`` (an ``include`` is
a pattern that brings something back). As in Git, an excluded folder is not read, so its content only comes
back with the folder itself. The fourth list, `CREDENTIALS`, overrides them all: no pattern brings a
credential back.

The rules of a snapshot are part of it: they are stored in its root under the reserved name ``.treering``,
which no file of a workspace can have. With nothing but the defaults there is nothing to store, so the name of
the root depends on the files alone. **Invariant:** a restore uses the rules of the snapshot, not the current
ones, so what was excluded then is not touched now.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.errors import Corrupt, InvalidInput, NewerStore
from treering.secret_scan import SCAN_RULES

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE: Final = ".treeringignore"
"""A file in the root of a workspace with its own patterns, one per line."""

RESERVED: Final = ".treering"
"""The folder of a store; in the root of a snapshot, the file with its rules."""

TEMPORARY: Final = ".treering-tmp-"
"""The prefix of the names of unfinished files and folders."""

DEFAULT_EXCLUDES: Final = (
    ".git/",
    "node_modules/",
    "__pycache__/",
    "*.pyc",
    ".cache/",
    ".npm/",
    ".pip/",
    ".venv/",
    "venv/",
    "/temp/",
)
"""Excluded unless an ``include`` (or a ``!pattern``) brings it back."""

CREDENTIALS: Final = (
    # sign-ins of agents
    ".credentials.json",
    ".claude.json",
    "auth.json",
    "oauth_creds.json",
    "mcp-oauth-tokens.json",
    "google_accounts.json",
    "credentials.toml",
    # tokens
    "token.json",
    "*.token",
    ".huggingface/token",
    ".cache/huggingface/token",
    ".vault-token",
    # copies of the environment, which has keys in it
    ".codex/shell_snapshots/",
    ".claude/shell-snapshots/",
    # sign-ins of common tools
    ".netrc",
    "_netrc",
    ".pgpass",
    ".pypirc",
    ".npmrc",
    ".git-credentials",
    ".aws/credentials",
    ".aws/sso/",
    ".aws/cli/cache/",
    ".azure/",
    ".config/gcloud/",
    ".config/gh/hosts.yml",
    ".docker/config.json",
    ".dockercfg",
    ".kube/config",
    "application_default_credentials.json",
    ".boto",
    ".s3cfg",
    "rclone.conf",
    ".my.cnf",
    ".mylogin.cnf",
    ".cargo/credentials",
    ".gem/credentials",
    ".terraform.d/credentials.tfrc.json",
    ".pulumi/credentials.json",
    ".databrickscfg",
    "kaggle.json",
    # keys
    ".ssh/",
    ".gnupg/",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "id_ecdsa_sk",
    "id_ed25519_sk",
    "*.key",
    "*.ppk",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "key.pem",
    "*-key.pem",
    "*_key.pem",
    "*.key.pem",
    "*privkey.pem",
)
"""Never archived, whatever the patterns say. ``.env`` is not listed, as programs need it to run: exclude it
where it holds secrets."""

Reason = Literal["ignored", "credential", "reserved"]

LISTS_DIGEST: Final = sha256(
    "\n".join((*DEFAULT_EXCLUDES, "", *CREDENTIALS, "", SCAN_RULES)).encode()
).hexdigest()
"""Identifies the two lists, and the rules for secrets: a stat cache that was made with others is not used."""

_VERSION: Final = 1
_WILD: Final = frozenset("*?[")
_FOLDERS: Final = "(?:[^/]+/)*"
_ANYTHING: Final = ".*"
_IN_NAME: Final = "[^/]*"
_STAR_PARTS: Final = frozenset({_FOLDERS, _ANYTHING, _IN_NAME})
_FEW_STARS: Final = 2
_DOUBLED: Final = re.compile(r"(?:\[\^/\]\*){2,}")
_STARS: Final = re.compile(
    r"(?P<star>\[\^/\]\*|\.\*)"  # within a name, or across folders
    r"(?P<fixed>(?:\\.|\(\?!/\)|\[\^/\](?!\*)|\[[^\]\\/]+\](?!\*)|[^][\\(){}*+?|^$./])+)"
    r"(?=(?P=star))",
    re.DOTALL,
)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Which paths of a workspace belong to its snapshot.

    ``patterns`` are those in addition to the defaults, in order; a leading ``!`` brings back.
    """

    patterns: tuple[str, ...] = ()

    def reason(self, path: str, *, is_folder: bool) -> Reason | None:
        """Return why a relative path is excluded; ``None`` if it is not.

        Its parent folders are not checked: a walk has checked them before.
        """
        name = path[path.rfind("/") + 1 :]
        if name == RESERVED or name.startswith(TEMPORARY):
            return "reserved"
        if _is_credential(path, name, is_folder=is_folder):
            return "credential"
        asked = path + "/" if is_folder else path
        if self.patterns:
            decided = gitignore_spec(self.patterns).check_file(asked).include
            if decided is not None:
                return "ignored" if decided else None
        return "ignored" if _is_default(path, name, is_folder=is_folder) else None

    def to_bytes(self) -> bytes | None:
        """Return the form stored in a snapshot; ``None`` if there are only the defaults."""
        if not self.patterns:
            return None
        return msgspec.json.encode({"patterns": self.patterns, "version": _VERSION}, order="sorted")


def read_rules(data: bytes | None) -> Rules:
    """Decode rules from `Rules.to_bytes`."""
    if data is None:
        return Rules()
    try:
        stored = msgspec.json.decode(data, type=_Stored)
        if stored.version > _VERSION:
            raise NewerStore(
                f"a snapshot's rules have version {stored.version}; upgrade treering to restore it"
            )
        return _checked(stored.patterns)
    except (msgspec.MsgspecError, InvalidInput) as error:
        raise Corrupt(f"a snapshot's rules cannot be read ({error}); run verify") from error


def make_rules(
    *, ignore_lines: Iterable[str] = (), exclude: Iterable[str] = (), include: Iterable[str] = ()
) -> Rules:
    """Make rules from the lines of an ignore file and from the caller's patterns."""
    lines = [line.rstrip("\r\n") for line in ignore_lines]
    patterns = [line for line in lines if line.strip() and not line.startswith("#")]
    patterns += _listed(exclude, "exclude")
    patterns += [f"!{each}" for each in _listed(include, "include")]
    return _checked(tuple(patterns))


class _Stored(msgspec.Struct, frozen=True):
    patterns: tuple[str, ...]
    version: int


def _listed(patterns: Iterable[str], what: str) -> list[str]:
    if isinstance(patterns, str):
        raise InvalidInput(f"{what}={patterns!r} is a single string; pass a list of patterns")
    listed = list(patterns)
    if odd := [each for each in listed if not isinstance(each, str)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what}= contains {odd[0]!r}, which is not a string; pass a list of patterns")
    return listed


def _checked(patterns: tuple[str, ...]) -> Rules:
    try:
        gitignore_spec(patterns)
    except (ValueError, re.error) as error:
        raise InvalidInput(f"invalid .gitignore pattern: {error}") from error
    return Rules(patterns=patterns)


@lru_cache(maxsize=64)
def gitignore_spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    """Compile .gitignore patterns, which may be hostile."""
    from pathspec import GitIgnoreSpec  # slow to import, and most workspaces need the defaults only
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about [[, whose meaning may change in Python
        read = cast("Iterable[Any]", GitIgnoreSpec.from_lines(patterns).patterns)
        return GitIgnoreSpec(
            GitIgnoreSpecPattern(re.compile(limit_backtracking(each.regex.pattern)), include=each.include)
            for each in read
            if each.include is not None
        )


class _PatternIndex:
    """A list of patterns, split up for speed, as the two lists above are matched against every path.

    Most patterns are plain names (a set lookup) or suffixes; only the few others go through pathspec.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.files: set[str] = set()
        self.folders: set[str] = set()
        endings: list[str] = []
        rest: list[str] = []
        for pattern in patterns:
            body = pattern.rstrip("/")
            is_plain = "/" not in body and not _WILD & set(body)
            if is_plain and pattern.endswith("/"):
                self.folders.add(body)
            elif is_plain:
                self.files.add(body)
            elif body.startswith("*") and "/" not in body and not _WILD & set(body[1:]):
                endings.append(body[1:])
            else:
                rest.append(pattern if body.startswith("/") or "/" not in body else f"**/{pattern}")
        self.endings = tuple(endings)
        self.rest = tuple(rest)
        self.last_names = {pattern.rstrip("/").rpartition("/")[2] for pattern in rest}

    def matches(self, path: str, name: str, *, is_folder: bool) -> bool:
        if (is_folder and name in self.folders) or name in self.files or name.endswith(self.endings):
            return True
        if name not in self.last_names:
            return False
        return gitignore_spec(self.rest).match_file(path + "/" if is_folder else path)


_DEFAULT_INDEX: Final = _PatternIndex(DEFAULT_EXCLUDES)
_CREDENTIAL_INDEX: Final = _PatternIndex(CREDENTIALS)


def _is_default(path: str, name: str, *, is_folder: bool) -> bool:
    return _DEFAULT_INDEX.matches(path, name, is_folder=is_folder)


def _is_credential(path: str, name: str, *, is_folder: bool) -> bool:
    return _CREDENTIAL_INDEX.matches(path, name, is_folder=is_folder)


@lru_cache(maxsize=256)
def glob_pattern(pattern: str) -> Glob:
    """Compile a glob pattern over virtual paths.

    ``*`` and ``?`` stay within a name, ``**/`` spans folders, ``[abc]`` and ``[!a]`` match one character.
    """
    given = pattern.strip("/")
    if not given:
        raise InvalidInput("a pattern cannot be empty; '**' matches everything")
    parts: list[str] = []
    at = 0
    while at < len(given):
        if given.startswith("**/", at) and (at == 0 or given[at - 1] == "/"):
            part = _FOLDERS
            at += 3
        elif given.startswith("**", at):
            part = _ANYTHING
            at += 2
        elif given[at] == "*":
            part = _IN_NAME
            at += 1
        elif given[at] == "?":
            part = "[^/]"
            at += 1
        elif given[at] == "[" and (end := given.find("]", at + 2)) > 0:
            part = _characters(given[at + 1 : end])
            at = end + 1
        else:
            part = re.escape(given[at])
            at += 1
        if part in _STAR_PARTS and parts and parts[-1] in {part, _ANYTHING}:
            continue  # what is before it matches as much
        if part == _ANYTHING and parts and parts[-1] == _IN_NAME:
            parts.pop()
        parts.append(part)
    return Glob(parts)


class Glob:
    """A compiled glob pattern.

    With a few stars it is a regular expression. With many, an expression may try every way to share a path
    among the stars, so the states of the pattern are advanced together, one character at a time: a bit for
    each part of the pattern that may come next.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        self._regex: re.Pattern[str] | None = None
        if sum(part in _STAR_PARTS for part in parts) <= _FEW_STARS:
            self._regex = re.compile("".join(parts), re.DOTALL)
            return
        steps: list[str | None] = []
        self._optional = self._folders = self._in_name = self._anywhere = 0
        for part in parts:
            bit = 1 << len(steps)
            if part == _FOLDERS:  # nothing, or anything and a slash
                self._folders |= bit
                self._anywhere |= bit << 1
                steps += [None, "/"]
            elif part in _STAR_PARTS:
                self._optional |= bit
                self._in_name |= bit if part == _IN_NAME else 0
                self._anywhere |= bit if part == _ANYTHING else 0
                steps.append(None)
            else:
                steps.append(part)
        self._steps = [None if step is None else re.compile(step, re.DOTALL) for step in steps]
        self._bits_of: dict[str, int] = {}

    def fullmatch(self, path: str) -> bool:
        """Whether the pattern matches a whole path."""
        if self._regex is not None:
            return self._regex.fullmatch(path) is not None
        states = self._closed(1)
        for character in path:
            staying = self._anywhere if character == "/" else self._anywhere | self._in_name
            states = self._closed((states & self._taking(character)) << 1 | states & staying)
        return bool(states >> len(self._steps) & 1)

    def _taking(self, character: str) -> int:
        """The parts that match this character."""
        bits = self._bits_of.get(character)
        if bits is None:
            matching = (at for at, step in enumerate(self._steps) if step and step.fullmatch(character))
            bits = self._bits_of[character] = sum(1 << at for at in matching)
        return bits

    def _closed(self, states: int) -> int:
        """Add the states that need no character."""
        while True:
            folders = states & self._folders
            more = states | (states & self._optional | folders) << 1 | folders << 2
            if more == states:
                return states
            states = more


def limit_backtracking(regex: str) -> str:
    """Return an equivalent expression without catastrophic backtracking, for patterns that may be hostile.

    Of several stars, each but the last may settle for the first place where what follows it matches: the next
    star can match everything in between, so backtracking never helps.
    """
    return _STARS.sub(r"(?>\g<star>?\g<fixed>)", _DOUBLED.sub("[^/]*", regex))


def _characters(inside: str) -> str:
    is_negated = inside[0] in "!^"
    chosen = inside[1:] if is_negated else inside
    ranges = re.sub(r"([\\\[\]^&~|])", r"\\\1", chosen)
    text = f"(?!/)[{'^' if is_negated else ''}{ranges}]"
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidInput(f"[{inside}] is not a valid set of characters: {error}") from error
    return text
