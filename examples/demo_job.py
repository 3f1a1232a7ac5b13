"""The job of the demo: two agents build a small program and test it, in a process of their own.

The `lead` gives the work to the `coder` and checks the result; both are `create_agent` loops whose threads,
files and costs are kept in one store. The models are scripts, so nothing here needs a network or a key: they
read the conversation and decide what comes next, as a model would. The files are really written, the tests
really run.

    python examples/demo_job.py STORE WORK        work, or go on where an earlier process stopped

With ``--hold``, the process stops half-way through writing the program and waits for whoever kills it. Each
checkpoint that the store has acknowledged is a line on stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import treering
from treering.agent import Context, create_agent, tool

LEAD, CODER = "slugs/lead", "slugs/coder"
GOAL = "We need a function that makes the slug of a URL out of a title."
TASK = (
    "Write slugs.py with slug(title): small letters, words joined by dashes, no signs, no accents. Test it."
)
MODELS = {"lead": "gpt-5", "coder": "claude-sonnet-4-5"}

TESTS = """import unittest

from slugs import slug


class Slugs(unittest.TestCase):
    def test_words_are_joined(self):
        self.assertEqual(slug("Hello World"), "hello-world")

    def test_signs_are_dropped(self):
        self.assertEqual(slug("Rings, and more rings!"), "rings-and-more-rings")

    def test_accents_are_dropped(self):
        self.assertEqual(slug("Crème brûlée"), "creme-brulee")
"""
GERMAN_TEST = """
    def test_german_letters_are_spelt_out(self):
        self.assertEqual(slug("Größe der Bäume"), "groesse-der-baeume")
"""
DRAFT = '''"""Slugs for URLs."""


def slug(title):
    """The title in small letters, its words joined by dashes."""
    return "-".join(title.lower().split())
'''
MENDED = '''"""Slugs for URLs."""

import re
import unicodedata


def slug(title):
    """The title in small letters without accents and signs, its words joined by dashes."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return "-".join(re.findall("[a-z0-9]+", plain.lower()))
'''
GERMAN = '''"""Slugs for URLs."""

import re
import unicodedata

SPELT_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})


def slug(title):
    """The title in small letters, German ones spelt out, its words joined by dashes."""
    plain = unicodedata.normalize("NFKD", title.lower().translate(SPELT_OUT))
    return "-".join(re.findall("[a-z0-9]+", plain.encode("ascii", "ignore").decode()))
'''


class Job:
    """The agents, their tools and their store. ``tell`` hears of each checkpoint that is durable."""

    def __init__(self, store: treering.Store, work: Path, *, tell=None, holds: bool = False) -> None:
        self.store = store
        self.work = work
        self._tell = tell or (lambda _told: None)
        self._holds = holds
        store.hooks.add("pre_checkpoint_save", self._before_saving)
        store.hooks.add("post_checkpoint_save", self._acknowledged)

    def go_on(self) -> str:
        """Begin the job, or finish what an earlier process left; the lead's last words."""
        coder = self.store.thread(CODER).get()
        if coder is not None:
            coder.restore(self.work, delete=True)  # what was half written is not part of any moment
        lead = self.store.thread(LEAD).get()
        return self.ask("lead", LEAD, None if lead is not None else GOAL)

    def ask(self, agent: str, thread: str, prompt: str | None) -> str:
        """Let an agent answer, or (without a prompt) finish its unfinished turn."""
        tools = [self.delegate, self.run_tests] if agent == "lead" else [self.write_file, self.run_tests]
        made = create_agent(
            name=agent,
            model=lead_model if agent == "lead" else coder_model,
            tools=[tool(each, replay="safe") for each in tools],  # none of them does harm when made twice
            checkpointer=self.store,
        )
        return made.generate(thread_id=thread, prompt=prompt, checkpoint_after_tool_call=True).text

    # The tools
    def delegate(self, task: str) -> str:
        """Give a piece of work to the coder."""
        left = self.store.thread(CODER).get()
        unfinished = left is not None and left.metadata.get("status") == "running"
        return self.ask("coder", CODER, None if unfinished else task)

    def write_file(self, path: str, text: str) -> str:
        """Write a file of the workspace."""
        with (self.work / path).open("w", encoding="utf-8") as file:
            if self._holds and path == "slugs.py":
                file.write(text[: len(text) // 2])
                file.flush()
                self._tell({"half": path})
                sys.stdin.read()
            file.write(text)
        return f"wrote {len(text)} characters to {path}"

    def run_tests(self, context: Context) -> str:
        """Run the tests of the workspace."""
        done = test_run(self.work)
        context.state["tests"] = {"ran": done.count(" ... "), "passed": done.count(" ... ok")}
        return done

    # Around every checkpoint
    def _before_saving(self, saving) -> dict:
        """The files belong to the checkpoint, and its note says what it is."""
        message = saving.messages[-1]
        last = (message["content"] or "").splitlines()[-1]
        return {
            "workspace": str(self.work),
            "note": last if message["role"] == "assistant" else f"{message['role']}: {last}",
        }

    def _acknowledged(self, saved) -> None:
        self.store.flush()
        checkpoint = saved.checkpoint
        self._tell({"saved": checkpoint.id, "thread": saved.thread_id, "step": checkpoint.step})


def test_run(work: Path) -> str:
    """What the tests of a folder say, without the folder's own path."""
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-v"],
        cwd=work,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return (done.stdout + done.stderr).replace(f"{work}{os.sep}", "").strip()


def tokens(value) -> int:
    """About as many as a model would count: one for four characters."""
    return max(1, len(json.dumps(value)) // 4)


# The models


def lead_model(messages, _tools):
    """Gives the work away, tests what comes back, and reports."""
    results = [each["content"] for each in messages if each["role"] == "tool"]
    if not results:
        return answer("lead", messages, "The coder can do that.", ("delegate", {"task": TASK}))
    if len(results) == 1:
        return answer("lead", messages, "I test it myself.", ("run_tests", {}))
    return answer("lead", messages, f"slugs.py is ready. {last_line(results[-1])}.")


def coder_model(messages, _tools):
    """Writes tests, then the program; mends it while tests fail."""
    turn = max(number for number, each in enumerate(messages) if each["role"] == "user")
    german = "German" in messages[turn]["content"]
    since = [each for each in messages[turn:] if each["role"] == "tool"]
    tests = TESTS + GERMAN_TEST if german else TESTS
    program = GERMAN if german else DRAFT
    if not since:
        return answer(
            "coder", messages, "The tests first.", ("write_file", {"path": "test_slugs.py", "text": tests})
        )
    last = since[-1]["content"]
    if last.endswith("test_slugs.py"):
        return answer(
            "coder", messages, "Now the program.", ("write_file", {"path": "slugs.py", "text": program})
        )
    if last.endswith("slugs.py"):
        return answer("coder", messages, "Does it work?", ("run_tests", {}))
    if "FAILED" in last:
        failed = last.count("FAIL: ")
        text = f"{failed} tests fail: I forgot signs and accents."
        return answer("coder", messages, text, ("write_file", {"path": "slugs.py", "text": MENDED}))
    return answer("coder", messages, f"Done. {last_line(last)}.")


def answer(agent: str, asked: list, text: str, *calls: tuple[str, dict]):
    """An answer as a provider gives it: a message, the calls in it, and what it took."""
    wanted = [
        {
            "id": f"call_{os.urandom(6).hex()}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in calls
    ]
    return {
        "role": "assistant",
        "model": MODELS[agent],
        "content": text,
        **({"tool_calls": wanted} if wanted else {}),
        "usage": {"input": tokens(asked), "output": tokens([text, wanted])},
    }


def last_line(text: str) -> str:
    ran = next(line for line in text.splitlines() if line.startswith("Ran "))
    return f"{ran.split(' in ')[0]}: {text.splitlines()[-1]}"


if __name__ == "__main__":
    place, folder = sys.argv[1:3]
    with treering.open(place) as opened:
        say = lambda result: print(json.dumps(result), flush=True)  # noqa: E731 - a line of a pipe
        Job(opened, Path(folder), tell=say, holds="--hold" in sys.argv).go_on()
