"""Import the sessions of Claude Code for a project into a store, and list them there.

    python examples/claude_agent_sdk_store.py [PROJECT FOLDER [STORE]]

Without a folder, it creates a temporary project with one session and imports it twice. It can be run again
at any time: entries that are in the store already are left out. Afterwards,
`ClaudeAgentOptions(session_store=..., resume=...)` resumes any of these sessions, on any machine that can
reach the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import claude_agent_sdk as sdk

import treering
from treering.adapters.claude.session_store import TreeringSessionStore


async def bring(project: Path, url: str) -> None:
    async with treering.open_async(url) as store:
        sessions = TreeringSessionStore(store)
        for found in sdk.list_sessions(directory=str(project), include_worktrees=False):
            await sdk.import_session_to_store(found.session_id, sessions, directory=str(project))
        namespace = sdk.project_key_for_directory(str(project))
        for info in await sdk.list_sessions_from_store(sessions, directory=str(project)):
            checkpoint = await store.thread(info.session_id, namespace).load()
            agents = await sessions.list_subkeys({"project_key": namespace, "session_id": info.session_id})
            entries = len(await checkpoint.messages())
            print(f"{info.session_id}  {info.summary}")
            print(f"  entries: {entries}, subagents: {len(agents)}, checkpoints: {checkpoint.step + 1}")
        print(f"verified: {(await store.verify()).ok}")


def make_up(folder: Path) -> Path:
    """A project, and the transcript of a session in a home of its own."""
    project = folder / "project"
    project.mkdir()
    os.environ["CLAUDE_CONFIG_DIR"] = str(folder / "home")
    session_id = str(UUID(int=1))
    place = folder / "home" / "projects" / sdk.project_key_for_directory(str(project))
    (place / session_id / "subagents").mkdir(parents=True)
    lines = [
        {
            "type": role,
            "uuid": str(UUID(int=number + 10)),
            "parentUuid": str(UUID(int=number + 9)) if number else None,
            "sessionId": session_id,
            "timestamp": f"2026-01-01T00:00:0{number}.000Z",
            "cwd": str(project),
            "isSidechain": False,
            "message": {"role": role, "content": text},
        }
        for number, (role, text) in enumerate(
            [("user", "Count the rings."), ("assistant", "There are 42."), ("user", "Are you sure?")]
        )
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (place / f"{session_id}.jsonl").write_text(text, encoding="utf-8")
    (place / session_id / "subagents" / "agent-1.jsonl").write_text(text, encoding="utf-8")
    return project


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(bring(Path(sys.argv[1]).resolve(), *(sys.argv[2:] or ["./.treering"])))
    else:
        with tempfile.TemporaryDirectory(prefix="treering-example-") as made_up:
            made_up_project = make_up(Path(made_up).resolve())
            asyncio.run(bring(made_up_project, str(Path(made_up) / "store")))
            asyncio.run(bring(made_up_project, str(Path(made_up) / "store")))
