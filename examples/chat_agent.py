"""A chat agent that survives restarts. Run it with a folder, and type; /new, /back and /quit are commands.

Stop it any way you like, also with kill -9, and start it again: the conversation goes on.
"""

from __future__ import annotations

import sys

import treering


def reply(messages: list[dict[str, str]]) -> str:
    """Stands in for a model: it remembers only what the thread remembers."""
    said = [each["content"] for each in messages if each["role"] == "user"]
    return f"You have said {len(said)} thing(s); the first was {said[0]!r}."


def main(folder: str = "./chat-data") -> None:
    with treering.open(folder) as store:
        chat = store.chat("terminal", "me")
        print(f"thread {chat.thread.id}")
        for line in map(str.strip, sys.stdin):
            thread = chat.thread
            if line == "/quit":
                return
            if line == "/new":
                print(f"thread {chat.reset().id}")
            elif line == "/back":
                checkpoint = thread.apply({"type": "STEP_BACK", "rollback": 2})  # a question and its answer
                print(
                    "nothing to take back"
                    if checkpoint is None
                    else f"{checkpoint.message_count} messages left"
                )
            elif line:
                asked = thread.append({"role": "user", "content": line}, on_conflict="retry")
                if asked is not None:
                    answer = reply(asked.messages)
                    thread.append({"role": "assistant", "content": answer}, on_conflict="retry")
                    print(answer)


if __name__ == "__main__":
    main(*sys.argv[1:2])
