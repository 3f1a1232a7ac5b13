"""MkDocs hook: turn links to repository files outside the site into their paths."""

from __future__ import annotations

import re
from typing import Any, Final

_OUTSIDE: Final = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:examples|benchmarks|src|tests|scripts)/[^)\s]+|[A-Z]+\.md)\)"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite the links of a page; called by MkDocs."""
    return _OUTSIDE.sub(lambda found: f"{found[1]} (`{found[2]}`)", markdown)
