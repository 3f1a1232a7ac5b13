"""Totals of a trace by agent, model, thread and day: the same in whatever order and requests it arrives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some

import treering
from tests.runs.otlp.exports import TRACE, span, traces
from treering.runs.listing import run_records
from treering.store import Store

AGENTS = ("planner", "worker")
MODELS = ("gpt-5", "nobody-knows-1")


@some.composite
def spans_of_a_trace(draw) -> list[dict]:
    """A tree of agents, steps and calls, below one root that the others descend from."""
    made = [_agent(1, None, "planner", {"gen_ai.conversation.id": "alice"} if draw(some.booleans()) else {})]
    for number in range(2, draw(some.integers(3, 10))):
        parent = draw(some.integers(1, number - 1))
        kind = draw(some.sampled_from(("agent", "step", "call", "call", "named call")))
        if kind == "agent":
            made.append(_agent(number, parent, draw(some.sampled_from(AGENTS)), {}))
        elif kind == "step":
            status = {"code": draw(some.sampled_from((1, 2)))}
            made.append(span("step", id=number, parent=parent, at_ms=number, status=status))
        else:
            used = {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": draw(some.sampled_from(MODELS)),
                "gen_ai.usage.input_tokens": 10**number,
                "gen_ai.usage.output_tokens": number,
            }
            if kind == "named call":
                used |= {"gen_ai.agent.name": "critic"}
            if draw(some.booleans()):
                used |= {"gen_ai.conversation.id": "alice"}
            made.append(span("chat", id=number, parent=parent, at_ms=number, attributes=used))
    return made


@given(spans=spans_of_a_trace(), random=some.randoms(use_true_random=False), is_new_server=some.booleans())
@settings(deadline=None)
def test_totals_do_not_depend_on_order_and_requests(spans, random, is_new_server):
    with treering.open("memory:") as whole:
        whole.otlp.write(traces(*spans), encoding="json")
        wanted = totals(whole)
        assert whole.verify().ok
    random.shuffle(spans)
    with treering.open("memory:") as store:
        while spans:
            size = random.randint(1, len(spans))
            part, spans = spans[:size], spans[size:]
            receiver = _another_server(store) if is_new_server else store
            receiver.otlp.write(traces(*part), encoding="json")
            if is_new_server:
                receiver.otlp.close()
        assert totals(store) == wanted
        assert store.verify().ok


def test_a_long_run_whose_first_span_comes_last_is_the_agents(store):
    """As exporters send: batches of children, and the span that names the agent at the end."""
    root = _agent(1, None, "planner", {"gen_ai.conversation.id": "alice"})
    used = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-5", "gen_ai.usage.input_tokens": 10}
    calls = [span("chat", id=number, parent=1, at_ms=number, attributes=used) for number in range(2, 602)]
    for start in range(0, 600, 100):
        store.otlp.write(traces(*calls[start : start + 100]), encoding="json")
    assert [part.key for part in store.cost.of_run(TRACE).parts] == ["shop"]
    store.otlp.write(traces(root), encoding="json")
    (part,) = store.cost.of_run(TRACE).parts
    assert (part.key, part.tokens, part.events) == ("planner", 6000, 601)
    assert [part.tokens for part in store.cost.of_thread("alice").parts] == [6000]
    shown = {event.type for event in store.timeline.of_run(TRACE, everything=True).events}
    assert "moved" not in shown  # how totals are kept is nobody's event
    assert store.verify().ok


def test_moved_totals_are_erased_with_their_run(store):
    used = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-5", "gen_ai.usage.input_tokens": 10}
    store.otlp.write(traces(span("chat", id=2, parent=1, attributes=used)), encoding="json")
    store.otlp.write(traces(_agent(1, None, "planner", {"gen_ai.conversation.id": "alice"})), encoding="json")
    store.otlp.close()
    store.forget(thread="alice")
    assert store.cost.of_days().total.tokens == 0
    assert store.verify().ok


def totals(store: Store) -> dict:
    reports = {by: store.cost.of_run(TRACE, by=by) for by in ("agent", "model", "kind", "day")}
    reports |= {"thread": store.cost.of_thread("alice"), "days": store.cost.of_days(by="agent")}
    records = run_records(store.engine, store.space, TRACE).records
    return reports | {"run": store.runs.load(TRACE).agent, "records": len(records)}


def _agent(number: int, parent: int | None, name: str, more: dict) -> dict:
    named = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    return span(f"invoke_agent {name}", id=number, parent=parent, ms=900, attributes=named | more)


def _another_server(store: Store) -> Store:
    """A store that remembers nothing of what has arrived."""
    return store.in_namespace(store.space)
