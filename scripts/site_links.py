"""A hook of MkDocs: links to files of the repository that are not part of the site become their paths."""

from __future__ import annotations

import re
from typing import Any, Final

_OUTSIDE: Final = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:examples|benchmarks|src|tests|scripts)/[^)\s]+|[A-Z]+\.md)\)"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return _OUTSIDE.sub(lambda found: f"{found[1]} (`{found[2]}`)", markdown)
