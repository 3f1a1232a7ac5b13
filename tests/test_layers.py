"""Lower layers know nothing of upper ones, not even as words. (Imports are checked by import-linter.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "treering"
FOREIGN = re.compile(
    r"langgraph|langchain|langsmith|pregel|gen_?ai|openinference|openai|anthropic|claude|codex|gemini"
    r"|opentelemetry|\botel\b|\botlp\b|pydantic[ _]?ai|\badk\b|deepagents|crewai|llama_?index|checkpoint_ns",
    re.IGNORECASE,
)
"""Frameworks, providers of models, and conventions of telemetry."""


@pytest.mark.parametrize("layer", ["core", "engines"])
def test_the_source_of_a_lower_layer_names_no_framework(layer):
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted((SOURCE / layer).rglob("*"))
        if path.suffix in {".py", ".sql", ".mako"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert found == []
