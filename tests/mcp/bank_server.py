"""An MCP server that pays, and that can kill the proxy in front of it after a payment.

python -m tests.mcp.bank_server LEDGER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

LEDGER = Path(sys.argv[1])
server = MCPServer("bank", instructions="Pays.")


def written(line: str) -> str:
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")
    trap = LEDGER.with_suffix(".trap")
    if trap.exists():
        trap.unlink()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"paid {line}"


@server.tool()
def pay(order: str) -> str:
    """Pay."""
    return written(order)


@server.tool()
def pay_once(order: str, idempotency_key: str) -> str:
    """Pay under a key."""
    line = f"{order} {idempotency_key}"
    if LEDGER.exists() and line in LEDGER.read_text().splitlines():
        return f"paid {line}"
    return written(line)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def balance() -> int:
    """Return how many payments were made."""
    return len(LEDGER.read_text().splitlines()) if LEDGER.exists() else 0


@server.resource("bank://terms")
def terms() -> str:
    return "Payments are final."


server.run("stdio")
