"""An agent for tests: it does what its prompt says, and tells so as Claude Code does.

    python scribbler.py [--model M] [--continue] PROMPT

``write FILE TEXT``, ``append FILE TEXT``, ``read FILE``, ``env NAME``, ``asked``, ``fail``, ``sleep`` and
``shout`` are what it understands. It keeps its sessions in ``~/.scribbler/sessions`` and knows with
``--continue`` what it was asked before.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    goes_on = "--continue" in arguments
    model = next((each.removeprefix("--model=") for each in arguments if each.startswith("--model=")), "m-1")
    prompt = arguments[-1]
    claude = os.environ.get("CLAUDE_CONFIG_DIR")  # when it stands in for Claude Code
    folder = Path(claude) / "projects" / slug() if claude else Path.home() / ".scribbler" / "sessions"
    session = folder / "one.jsonl"
    session.parent.mkdir(parents=True, exist_ok=True)
    before = session.read_text().splitlines() if goes_on and session.exists() else []
    say({"type": "system", "subtype": "init", "session_id": "s-1", "model": model, "cwd": str(Path.cwd())})
    prompt = understood(prompt)
    verb, _, rest = prompt.partition(" ")
    name, _, text = rest.partition(" ")
    code = 0
    answer = "done"
    if verb == "write":
        Path(name).write_text(text)
    elif verb == "append":
        with Path(name).open("a") as file:
            file.write(text)
    elif verb == "read":
        answer = Path(name).read_text()
    elif verb == "env":
        answer = os.environ.get(name, "(not set)")
    elif verb == "asked":
        answer = " | ".join(before)
    elif verb == "shout":
        print("not json at all", flush=True)
        print("on stderr", file=sys.stderr, flush=True)
        say({"jsonrpc": "2.0", "method": "session/update", "odd": [1.50, "ü"]})
        say({"_meta": "an agent may say this as well"})
    elif verb == "sleep":
        Path("started").touch()
        time.sleep(float(name or 60))
    elif verb == "fail":
        code = 3
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": "msg_1", "role": "assistant", "model": model, "usage": usage}
    content = [{"type": "text", "text": answer}]
    say(
        {
            "type": "assistant",
            "session_id": "s-1",
            "uuid": os.urandom(8).hex(),
            "message": {**message, "content": content},
        }
    )
    say(
        {
            "type": "result",
            "subtype": "success",
            "is_error": code != 0,
            "result": answer,
            "session_id": "s-1",
            "usage": usage,
        }
    )
    with session.open("a") as file:
        file.write(prompt + "\n")
    return code


def understood(prompt: str) -> str:
    """The prompts of Evolve's documentation, by what they ask for."""
    sentences = {
        r"Create a file called (\S+) with '(.*)'": r"write \1 \2",
        r"Append '(.*)' to (\S+)": r"append \2 \1",
        r"Read (\S+) .*": r"read \1",
    }
    for sentence, meaning in sentences.items():
        if found := re.fullmatch(sentence, prompt):
            return found.expand(meaning)
    return prompt


def slug() -> str:
    return re.sub("[^A-Za-z0-9]", "-", str(Path.cwd()))


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
