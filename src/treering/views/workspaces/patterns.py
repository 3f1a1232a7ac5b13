"""Glob patterns over virtual paths, as a regular expression."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from treering.errors import InvalidInput

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
