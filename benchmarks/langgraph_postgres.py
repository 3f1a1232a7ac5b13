"""The LangGraph saver beside LangGraph's own, on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.postgres import PostgresSaver
from tests.servers.fleet import opened
from tests.servers.postgres import PostgresServer

import treering
from benchmarks.langgraph_work import new_messages, save_steps
from benchmarks.postgres import make_durable
from benchmarks.report import Measurement, Section, at_least
from treering.adapters.langgraph import TreeringSaver

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = {200: 10.0, 1000: 40.0}


def run(scratch: Path) -> Section:
    """Start a server and measure; every saver gets a database of its own."""
    del scratch
    with opened() as fleet:
        server = PostgresServer(**fleet.address("postgres"))
        make_durable(server.url("postgres"))
        return Section(
            title="LangGraph on PostgreSQL",
            about=(
                "The steps of *LangGraph on SQLite*, 200 and 1,000 of them, on a real server on loopback "
                "with `fsync`. The peers are `PostgresSaver`, and `PostgresSaver` with a `DeltaChannel`."
            ),
            measurements=[each for steps, limit in LIMITS.items() for each in _measure(server, steps, limit)],
        )


def _measure(server: PostgresServer, steps: int, limit: float) -> list[Measurement]:
    added = new_messages(steps)
    with treering.open(server.create_database()) as store:
        mine = save_steps(TreeringSaver(store), added)
    peers: list[float] = []
    for delta in (False, True):
        with PostgresSaver.from_conn_string(server.create_database()) as saver:
            saver.setup()
            peers.append(save_steps(saver, added, delta=delta))
    return [
        _row(f"{steps} steps, against PostgresSaver", steps, mine, peers[0], limit),
        _row(f"{steps} steps, against PostgresSaver with DeltaChannel", steps, mine, peers[1], 1.2),
    ]


def _row(claim: str, steps: int, mine: float, peer: float, limit: float) -> Measurement:
    target, met = at_least(peer / mine, limit)
    shown: dict[str, Any] = {"ours": f"{steps / mine:.0f}/s", "peer": f"{steps / peer:.0f}/s"}
    return Measurement(claim=claim, **shown, ratio=peer / mine, target=target, met=met)
