"""What a snapshot leaves out, and why.

Three lists decide, in this order, and the last pattern that matches wins: the defaults below, the lines of
the workspace's own ``.treeringignore``, and the caller's ``exclude`` and ``include`` (an ``include`` is a
pattern that brings something back). All are patterns of ``.gitignore``; as there, a folder that is left out
is not looked into, so what lies in it comes back only with the folder itself. The fourth list,
`CREDENTIALS`, is beyond all of that: no pattern brings a credential back.

The rules that a snapshot was taken by are part of it: they lie in its root under the reserved name
``.treering``, which no workspace's own file ever has. Without rules beyond the defaults there is nothing to
keep, so the name of the root is the name of the files alone. **Invariant:** whoever restores a snapshot reads
the rules of that snapshot, not today's, so what was left out then is not touched now.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.errors import Corrupt, InvalidInput, NewerStore

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


# -----------------------------------------------------------------------------------------------------------
# Glob patterns over virtual paths, as a regular expression.


_DOUBLED: Final = re.compile(r"(?:\[\^/\]\*){2,}")
_STARS: Final = re.compile(
    r"(?P<star>\[\^/\]\*|\.\*)"  # within a name, or across folders
    r"(?P<fixed>(?:\\.|\(\?!/\)|\[\^/\](?!\*)|\[[^\]\\/]+\](?!\*)|[^][\\(){}*+?|^$./])+)"
    r"(?=(?P=star))",
    re.DOTALL,
)


@lru_cache(maxsize=256)
def glob_pattern(pattern: str) -> re.Pattern[str]:
    """``*`` and ``?`` stay within a name, ``**/`` spans folders, ``[abc]`` and ``[!a]`` are one character."""
    given = pattern.strip("/")
    if not given:
        raise InvalidInput("a pattern cannot be empty; '**' finds everything")
    parts: list[str] = []
    at = 0
    while at < len(given):
        if given.startswith("**/", at) and (at == 0 or given[at - 1] == "/"):
            parts.append("(?:[^/]+/)*")
            at += 3
        elif given.startswith("**", at):
            parts.append(".*")
            at += 2
        elif given[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif given[at] == "?":
            parts.append("[^/]")
            at += 1
        elif given[at] == "[" and (end := given.find("]", at + 2)) > 0:
            parts.append(_characters(given[at + 1 : end]))
            at = end + 1
        else:
            parts.append(re.escape(given[at]))
            at += 1
    return re.compile(bounded("".join(parts)), re.DOTALL)


def bounded(regex: str) -> str:
    """The same expression, without the choices that would make a hostile pattern take for ever.

    Of several stars in a row, each but the last may take the first place where what follows it fits: the next
    one can take whatever lies between, so going back never helps.
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
        raise InvalidInput(f"[{inside}] is not a set of characters: {error}") from error
    return text


# -----------------------------------------------------------------------------------------------------------

IGNORE_FILE: Final = ".treeringignore"
"""A file in the root of a workspace with patterns of its own, one a line."""

RESERVED: Final = ".treering"
"""A store's own folder; in the root of a snapshot, where its rules are kept."""

TEMPORARY: Final = ".treering-tmp-"
"""What the names of half-written files and folders begin with."""

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
"""Left out unless an ``include`` (or a ``!pattern``) brings it back."""

CREDENTIALS: Final = (
    # what agents sign in with
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
"""Never archived, whatever is asked for. ``.env`` is not here, because programs need it to run: ignore it
where it holds secrets."""

Reason = Literal["ignored", "credential", "reserved"]

LISTS: Final = sha256("\n".join((*DEFAULT_EXCLUDES, "", *CREDENTIALS)).encode()).hexdigest()
"""Which lists these are: what was read by others has to be read again."""

_VERSION: Final = 1
_WILD: Final = frozenset("*?[")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Which paths of a workspace belong to its snapshot.

    ``patterns`` are what was given beyond the defaults, in order; a leading ``!`` brings back.
    """

    patterns: tuple[str, ...] = ()

    def reason(self, path: str, *, is_folder: bool) -> Reason | None:
        """Why a path (relative, ``/`` between names) is left out; ``None`` when it is not.

        The folders above it are not looked at: a walk has asked about them before.
        """
        name = path[path.rfind("/") + 1 :]
        if name == RESERVED or name.startswith(TEMPORARY):
            return "reserved"
        if _is_credential(path, name, is_folder=is_folder):
            return "credential"
        asked = path + "/" if is_folder else path
        if self.patterns:
            decided = _spec(self.patterns).check_file(asked).include
            if decided is not None:
                return "ignored" if decided else None
        return "ignored" if _is_default(path, name, is_folder=is_folder) else None

    def to_bytes(self) -> bytes | None:
        """The form that is kept in a snapshot; ``None`` when the defaults say it all."""
        if not self.patterns:
            return None
        return msgspec.json.encode({"patterns": self.patterns, "version": _VERSION}, order="sorted")


def read_rules(data: bytes | None) -> Rules:
    """Rules as `Rules.to_bytes` gave them."""
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
    """Rules from an ignore file's lines and from the caller's patterns."""
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
        raise InvalidInput(f"{what}={patterns!r} is one text; give a list of patterns")
    listed = list(patterns)
    if odd := [each for each in listed if not isinstance(each, str)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what}= has {odd[0]!r}, which is no text; give a list of patterns")
    return listed


def _checked(patterns: tuple[str, ...]) -> Rules:
    try:
        _spec(patterns)
    except (ValueError, re.error) as error:
        raise InvalidInput(f"a pattern is not one that .gitignore knows: {error}") from error
    return Rules(patterns=patterns)


@lru_cache(maxsize=64)
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # slow to import, and most workspaces need the defaults only
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python may read [[ in another way one day
        read = cast("Iterable[Any]", GitIgnoreSpec.from_lines(patterns).patterns)
        return GitIgnoreSpec(
            GitIgnoreSpecPattern(re.compile(bounded(each.regex.pattern)), include=each.include)
            for each in read
            if each.include is not None
        )


# The two lists above are asked about every name of a workspace, so they are cut up once: most of a list is
# plain names (one look into a set) and endings; only the few patterns left go through pathspec.
class _Cut:
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
        return _spec(self.rest).match_file(path + "/" if is_folder else path)


_DEFAULTS: Final = _Cut(DEFAULT_EXCLUDES)
_SECRETS: Final = _Cut(CREDENTIALS)


def _is_default(path: str, name: str, *, is_folder: bool) -> bool:
    return _DEFAULTS.matches(path, name, is_folder=is_folder)


def _is_credential(path: str, name: str, *, is_folder: bool) -> bool:
    return _SECRETS.matches(path, name, is_folder=is_folder)
