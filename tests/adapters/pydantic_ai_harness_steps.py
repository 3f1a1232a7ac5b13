"""The step store of pydantic-ai-harness: as its own stores, and with its own capability.

The harness pins a pydantic-ai that is older than our other adapters need. So `test_pydantic_ai_harness` runs
this file in an environment of its own, without the fixtures of the other tests.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai_harness.conversation_search import SnapshotHistorySource
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    InMemoryStepStore,
    RunRecord,
    StepEvent,
    StepPersistence,
    StepStore,
    ToolEffectRecord,
    annotate_tool_effect,
    continue_run,
)
from pydantic_ai_harness.step_persistence.recovery import inspect_recovery

import treering
from tests.adapters.pydantic_ai.scripted import scripted
from treering.adapters.pydantic_ai_harness import TreeringStepStore

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(params=["theirs", "ours"])
def steps(request, store) -> Any:
    return InMemoryStepStore() if request.param == "theirs" else TreeringStepStore(store)


def said(*texts: str) -> list[ModelMessage]:
    return [
        ModelResponse(parts=[TextPart(text)]) if place % 2 else ModelRequest(parts=[UserPromptPart(text)])
        for place, text in enumerate(texts)
    ]


def test_runs_come_back_equal_by_start_and_filter(steps):
    async def go():
        runs = [
            RunRecord(
                run_id="b", conversation_id="c", started_at=NOON + timedelta(hours=1), metadata={"k": "v"}
            ),
            RunRecord(
                run_id="a", conversation_id="c", parent_run_id="b", started_at=NOON + timedelta(hours=2)
            ),
            RunRecord(run_id="x/y \n", agent_name="odd", started_at=NOON),
        ]
        for each in runs:
            await steps.register_run(each)
        assert await steps.list_runs() == [runs[2], runs[0], runs[1]]
        assert await steps.list_runs(conversation_id="c", parent_run_id="b") == [runs[1]]
        assert await steps.get_run(run_id="x/y \n") == runs[2]
        assert await steps.get_run(run_id="nobody") is None
        await steps.register_run(replace(runs[0], registration_id="again"))
        assert (await steps.get_run(run_id="b")).registration_id == "again"

    asyncio.run(go())


def test_events_keep_their_order_and_a_repeated_one_is_stored_once(steps):
    async def go():
        first = StepEvent(
            run_id="r", kind="run_started", step_index=0, timestamp=NOON, idempotency_key="0:start"
        )
        call = StepEvent(
            run_id="r",
            kind="tool_call_started",
            step_index=1,
            timestamp=NOON,
            tool_call_id="t",
            metadata={"a": "b"},
        )
        await steps.append_event(first)
        await steps.append_event(call)
        await steps.append_event(replace(first, timestamp=NOON + timedelta(minutes=1)))
        await steps.append_event(call)  # without a key, it is another event
        assert await steps.list_events(run_id="r") == [first, call, call]
        assert await steps.list_events(run_id="s") == []

    asyncio.run(go())


def test_snapshots_are_read_by_state_and_a_repeated_or_older_one_is_ignored(steps):
    async def go():
        def snapshot(number: int, *texts: str, **more: Any) -> ContinuableSnapshot:
            fields: dict[str, Any] = {"timestamp": NOON, "idempotency_key": f"{number}:save", **more}
            return ContinuableSnapshot(run_id="r", step_index=number, messages=said(*texts), **fields)

        assert await steps.latest_snapshot(run_id="r") is None
        one, two = snapshot(1, "hi", "hello"), snapshot(2, "hi", "hello", "more", state="interrupted")
        for each in (one, two, one, two, snapshot(1, "late", idempotency_key="1:other")):
            await steps.save_snapshot(each)
        assert await steps.latest_snapshot(run_id="r") == one
        assert await steps.latest_snapshot(run_id="r", include_interrupted=True) == two
        assert await steps.list_snapshots(run_id="r", include_interrupted=True) == [one, two]
        named = snapshot(3, "hi", idempotency_key="by-hand")
        await steps.save_snapshot(named)
        await steps.save_snapshot(named)
        assert await steps.list_snapshots(run_id="r") == [one, named]

    asyncio.run(go())


def test_tool_effects_are_unresolved_until_their_end_is_recorded(steps):
    async def go():
        def effect(status: Any, **more: Any) -> ToolEffectRecord:
            return ToolEffectRecord(
                tool_call_id="t", tool_name="refund", run_id="r", status=status, started_at=NOON, **more
            )

        await steps.record_tool_effect(effect("started"))
        annotated = effect("started", idempotency_key="k", effect_summary="paid back 19.00")
        await steps.record_tool_effect(annotated)
        assert await steps.get_tool_effect(run_id="r", tool_call_id="t") == annotated
        assert await steps.list_unresolved_tool_effects(run_id="r") == [annotated]
        ended = effect("completed", ended_at=NOON + timedelta(seconds=1), effect_summary="paid back 19.00")
        await steps.record_tool_effect(ended)
        assert await steps.list_unresolved_tool_effects(run_id="r") == []
        assert await steps.get_tool_effect(run_id="r", tool_call_id="t") == ended
        assert await steps.get_tool_effect(run_id="s", tool_call_id="t") is None

    asyncio.run(go())


def agent_on(steps: Any) -> Agent:
    agent = Agent(FunctionModel(scripted, model_name="gpt-5"), capabilities=[StepPersistence(store=steps)])

    @agent.tool
    async def look_up(ctx: RunContext[None], word: str) -> str:
        await annotate_tool_effect(steps, ctx, effect_summary=f"looked up {word}")
        return word.upper()

    return agent


def test_the_harness_persists_resumes_and_searches_a_real_run(store):
    async def go():
        steps = TreeringStepStore(store)
        assert isinstance(steps, StepStore)
        result = await agent_on(steps).run("Where is it?", conversation_id="alice")
        (run,) = await steps.list_runs(conversation_id="alice")
        kinds = [event.kind for event in await steps.list_events(run_id=run.run_id)]
        assert kinds[0] == "run_started"
        assert kinds[-1] == "run_completed"
        assert "tool_call_completed" in kinds
        history = await continue_run(steps, run_id=run.run_id)
        assert history == result.all_messages()
        found = await inspect_recovery(store=steps, run_id=run.run_id)
        assert found.completed_tools == ("look_up",)
        assert found.unresolved == ()
        record = await SnapshotHistorySource(steps).run_history(run_id=run.run_id)
        assert len(record) == len(history)
        (effect,) = store.effects.list()
        assert (effect.tool, effect.status, effect.result) == ("look_up", "done", "looked up ring")
        assert len(steps.thread(run.run_id).load().messages) == len(history)

    asyncio.run(go())
    assert store.verify().ok


def test_a_call_whose_process_was_killed_is_unresolved_there_and_unknown_here(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, os, signal, sys
        from pydantic_ai import Agent
        from pydantic_ai.models.function import FunctionModel
        from pydantic_ai_harness.step_persistence import StepPersistence
        from tests.adapters.pydantic_ai.scripted import scripted
        from treering.adapters.pydantic_ai_harness import TreeringStepStore

        async def main():
            agent = Agent(
                FunctionModel(scripted),
                capabilities=[StepPersistence(store=TreeringStepStore(sys.argv[1]), run_id="r")],
            )

            @agent.tool_plain
            def refund(word: str) -> str:
                os.kill(os.getpid(), signal.SIGKILL)

            await agent.run("Pay it back.")

        asyncio.run(main())
        """
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "store"], check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL

    async def go(store: treering.Store) -> None:
        steps = TreeringStepStore(store)
        (left,) = await steps.list_unresolved_tool_effects(run_id="r")
        assert left.tool_name == "refund"
        (unknown,) = store.effects.unknown()
        assert (unknown.tool, unknown.call_id, unknown.status) == ("refund", left.tool_call_id, "unknown")
        await steps.record_tool_effect(replace(left, status="completed", effect_summary="the bank has it"))
        assert store.effects.load(unknown.id).result == "the bank has it"

    with treering.open(tmp_path / "store") as store:
        asyncio.run(go(store))
