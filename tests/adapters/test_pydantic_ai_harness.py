"""The extra ``pydantic-ai-harness``, which cannot be installed beside ``pydantic-ai``."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.servers.environment import ROOT, environment

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_step_store_with_the_pydantic_ai_that_the_harness_pins():
    extra = PROJECT["project"]["optional-dependencies"]["pydantic-ai-harness"]
    pinned = [
        each
        for each in PROJECT["dependency-groups"]["test"]
        if each.startswith(("pydantic-ai-harness==", "pytest"))
    ]
    python = environment("pydantic-ai-harness", [*PROJECT["project"]["dependencies"], *extra, *pinned])
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider",
         "tests/adapters/pydantic_ai_harness_steps.py"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) == 10


def test_the_conflict_is_declared_for_as_long_as_it_exists():
    (pinned,) = {
        Version(version)
        for each in requires("pydantic-ai-harness") or ()
        for version in re.findall(r"^pydantic-ai-slim==(\S+)$", each)
    }
    (needed,) = PROJECT["project"]["optional-dependencies"]["pydantic-ai"]
    assert pinned not in Requirement(needed).specifier, "it is gone: install both extras in one environment"
    conflicts = [{each["extra"] for each in pair} for pair in PROJECT["tool"]["uv"]["conflicts"]]
    assert {"pydantic-ai", "pydantic-ai-harness"} in conflicts
    assert {"frameworks", "pydantic-ai-harness"} in conflicts
