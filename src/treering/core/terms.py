"""From content to searchable text, and from a person's words to search terms.

Both directions are decided here once, so that every engine indexes the same words and answers the same
question. Common words are left out of questions (they match everything), and the rest is joined by OR:
asking for all words at once finds almost nothing in conversation.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from treering.core.encoding import decode
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.content import Content

STOP_WORDS: Final = frozenset(
    """
    a about after all also am an and any are as at be because been before being but by can could did do does
    doing for from had has have having he her here hers him his how i if in into is it its just me more most
    my no nor not now of off on once only or other our out over own same she should so some such than that
    the their them then there these they this those to too up us very was we were what when where which
    while who whom why will with would you your yours
    """.split()
)

_WORD: Final = re.compile(r"\w+")
_MAX_TERMS: Final = 64


def text_of(content: Content) -> str:
    """The words in content: text itself, or every string inside JSON; bytes and trees have none.

    Nor has JSON that does not parse: it is the reader's to complain, and one such content must not keep
    an index from being built.
    """
    if content.kind == "text":
        return content.data.decode("utf-8", errors="replace")
    if content.kind == "json":
        try:
            return "\n".join(_strings(decode(content)))
        except Corrupt:
            return ""
    return ""


def query_terms(text: str) -> list[str]:
    """The words of a question that are worth looking for, lower case, each once, in order."""
    words = list(dict.fromkeys(match.group().lower() for match in _WORD.finditer(text)))
    telling = [word for word in words if word not in STOP_WORDS]
    return (telling or words)[:_MAX_TERMS]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        return
    members: Any = ()
    if isinstance(value, dict):
        members = chain.from_iterable(cast("dict[Any, Any]", value).items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        members = cast("Any", value)
    for each in members:
        yield from _strings(each)
