"""Record `make demo` as the README's animated picture, docs/assets/demo.svg.

    python scripts/record_demo.py

The demo really runs; what it prints is drawn line by line. Lines appear faster or slower than they were
printed (a title pauses, a list does not), because a real run is over before anybody has read it.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "assets" / "demo.svg"

COLUMNS: Final = 112
ROWS: Final = 22
LINE: Final = 19  # pixels
CHARACTER: Final = 8.1
PAUSES: Final = {"title": 1.1, "line": 0.16, "check": 0.7, "end": 5.0}  # seconds

STYLE: Final = """
  .window { fill: #16181d }
  text { font: 13.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d6d9e0 }
  .title { fill: #f0b57a; font-weight: 600 }
  .check, .added { fill: #8fce9a }
  .removed { fill: #e28f8f }
  .prompt { fill: #7d8590 }
"""


def main() -> None:
    demo = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--no-serve"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ["$ make demo", *(cut(line) for line in demo.stdout.rstrip().splitlines())]
    PICTURE.write_text(draw(lines), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)} ({len(lines)} lines)")


def cut(line: str) -> str:
    return line.rstrip() if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…"


def kind_of(line: str) -> str:
    for kind, pattern in {
        "prompt": r"\$ ",
        "title": r"\d+\. ",
        "check": r" *ok: |Done in",
        "added": r" +\+",
        "removed": r" +-[^ >]| +-  ",
    }.items():
        if re.match(pattern, line):
            return kind
    return "line"


def draw(lines: list[str]) -> str:
    """Return the SVG: each line has its own animation, and the whole text scrolls as a terminal does."""
    starts, now = [], 0.3
    for line in lines:
        now += PAUSES.get(kind_of(line), PAUSES["line"])
        starts.append(now)
    length = now + PAUSES["end"]

    def percent(time: float) -> str:
        return f"{100 * time / length:.2f}%"

    rules, texts, scroll = [], [], ["0% { transform: translateY(0) }"]
    for number, (line, start) in enumerate(zip(lines, starts, strict=True)):
        hidden, shown = percent(start - 0.01), percent(start)
        rules.append(
            f"@keyframes l{number} {{ 0%, {hidden} {{ opacity: 0 }} {shown}, 100% {{ opacity: 1 }} }}"
        )
        rules.append(f"#l{number} {{ animation: l{number} {length:.1f}s infinite }}")
        place = f'id="l{number}" class="{kind_of(line)}" x="16" y="{30 + number * LINE}"'
        texts.append(f'<text {place} xml:space="preserve">{html.escape(line)}</text>')
        if number >= ROWS:
            before, after = -(number - ROWS) * LINE, -(number - ROWS + 1) * LINE
            scroll.append(f"{percent(start - 0.01)} {{ transform: translateY({before}px) }}")
            scroll.append(f"{percent(start)} {{ transform: translateY({after}px) }}")
    scroll.append(f"100% {{ transform: translateY({-max(0, len(lines) - ROWS) * LINE}px) }}")
    width, height = int(COLUMNS * CHARACTER) + 32, ROWS * LINE + 32
    label = "make demo: two agents are killed, resume, rewind, fork and are compared"
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg"',
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{label}">',
            f"<style>{STYLE}#all {{ animation: scroll {length:.1f}s infinite }}",
            f"@keyframes scroll {{ {' '.join(scroll)} }}",
            *rules,
            "</style>",
            f'<rect class="window" width="{width}" height="{height}" rx="8"/>',
            f'<clipPath id="view"><rect y="16" width="{width}" height="{height - 28}"/></clipPath>',
            '<g clip-path="url(#view)"><g id="all">',
            *texts,
            "</g></g></svg>",
            "",
        ]
    )


if __name__ == "__main__":
    main()
