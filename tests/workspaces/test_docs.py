"""The documentation page and the example are correct."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from treering.workspaces.ignore import CREDENTIALS, DEFAULT_EXCLUDES

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_lists_exactly_what_is_excluded() -> None:
    page = (ROOT / "docs" / "workspaces.md").read_text(encoding="utf-8")
    table, _, rest = page.partition("## Excluded files")[2].partition("**Credentials are never archived**")
    listed = re.findall(r"`([^`]+)`", rest.partition("Every skipped")[0])
    assert sorted(listed) == sorted(CREDENTIALS)
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert sorted(re.findall(r"`([^`]+)`", " ".join(rows))) == sorted(DEFAULT_EXCLUDES)


def test_the_example_restores_files_and_conversation() -> None:
    command = [sys.executable, str(ROOT / "examples" / "workspace.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "What went wrong:",
        "  added    drafts",
        "  added    drafts/tmp.md",
        "  removed  report.md",
        "The fork has: 12 refunds were sent.",
        "Rewound: ['report.md'] the good one",
        "Everything checks out: True",
    ]
