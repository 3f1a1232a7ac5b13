"""An agent with memory: what it learns in one conversation is known in the next, and a person can edit it.

Run it twice: the second time it already knows you. ``memory/`` holds its memory as Markdown files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import treering
from treering.agent import create_agent
from treering.compat.memory import create_agent_memory_middleware


def model(messages, _tools):
    """Stand in for a real model: repeat the memory in the system message."""
    known = [each["content"] for each in messages if each["role"] == "system"]
    return f"I know: {' '.join(known[0].split())}" if known else "I know nothing about you yet."


def main(folder: Path) -> None:
    with treering.open(folder / "agents") as store:
        memory = store.memory.in_namespace("user/alice")
        memory.sync_folder(folder / "memory")  # import what a person has edited
        agent = create_agent(
            model=model,
            checkpointer=store,
            middleware=[create_agent_memory_middleware(store=memory, max_tokens=1000)],
        )
        print(agent.generate(thread_id="chat", prompt="What do you know about me?").text)
        memory.save("tone", "Alice prefers concise replies.\n", tags=["style"], auto_load=True)
        print([hit.document.id for hit in memory.search("how should I reply?")])
        done = memory.sync_folder(folder / "memory")
        print(f"exported: {', '.join(done.exported) or 'nothing'}; unchanged: {done.unchanged}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
