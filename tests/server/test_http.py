"""Search, comparison, replay, performance, budgets and alerts over HTTP."""

from contextlib import suppress

import pytest


def recorded(store, answer="On page 3.", agent="planner", tags=("demo",)):
    with store.run(agent=agent, tags=tags) as run:
        run.message("user", "Where is my refund?")
        with run.span("gpt-5", kind="llm", model="gpt-5") as span:
            span.chunk("On page ")
            span.chunk("3.")
            span.use({"input": 5, "output": 7}, cost=1)
        run.message("assistant", answer)
    store.flush()
    return run.id


def test_searches(client, store):
    run = recorded(store)
    found = client.get("/search", params={"q": "refunds", "kind": "message"}).json()
    assert [(hit["run"], hit["role"]) for hit in found["hits"]] == [(run, "user")]
    assert "refund" in found["hits"][0]["snippet"]
    assert client.get("/search").status_code == 422
    assert client.get("/search", params={"q": "refund", "limit": 0}).status_code == 422


def test_compares_runs_and_agents(client, store):
    one, other = recorded(store), recorded(store, answer="Nowhere.", agent="writer")
    compared = client.get(f"/runs/{one}/compare/{other}").json()
    assert compared["divergences"][0]["what"] == "content"
    assert compared["runs"][0]["cost"]["nanos"] == {"USD": 1_000_000_000}
    assert client.get(f"/runs/{one}/compare/nobody").status_code == 404
    agents = client.get("/compare/agents", params={"agent": ["planner", "writer"]}).json()["agents"]
    assert [(each["agent"], each["runs"]) for each in agents] == [("planner", 1), ("writer", 1)]
    assert client.get("/compare/agents").status_code == 422


def test_replays_a_page_at_a_time(client, store):
    run = recorded(store)
    first = client.get(f"/runs/{run}/replay?limit=3").json()
    rest = client.get(f"/runs/{run}/replay?skip={first['next_skip']}").json()
    types = [step["type"] for step in first["steps"] + rest["steps"]]
    assert types == ["message", "llm.span.start", "chunk", "chunk", "llm.span.end", "message"]
    assert rest["next_skip"] is None
    assert [step["chunk"] for step in first["steps"] + rest["steps"] if step["chunk"]] == ["On page ", "3."]
    assert {step["content"] for step in first["steps"] + rest["steps"]} == {None}


def test_replays_what_was_said_when_asked(client, store):
    run = recorded(store, answer="On page 3.")
    steps = client.get(f"/runs/{run}/replay?contents=true").json()["steps"]
    assert [(step["type"], step["content"]) for step in steps if step["type"] != "chunk"] == [
        ("message", "Where is my refund?"),
        ("llm.span.start", None),
        ("llm.span.end", "On page 3."),
        ("message", "On page 3."),
    ]


def test_tells_how_fast_and_how_large(client, store):
    recorded(store)
    report = client.get("/performance?by=model").json()
    assert [(row["key"], row["calls"], row["error_rate"]) for row in report["rows"]] == [("gpt-5", 1, 0.0)]
    assert report["rows"][0]["first_token"]["p50_us"] >= 0
    assert client.get("/performance?by=luck").status_code == 422
    (day,) = client.get("/store/growth").json()["days"]
    assert day["runs"] == 1


@pytest.mark.parametrize("by", ["tag", "run", "thread"])
def test_sums_up_costs_by_tag_run_and_thread(client, store, by):
    run = recorded(store)
    parts = client.get(f"/cost?by={by}").json()["parts"]
    expected = {"tag": ["demo"], "run": [run], "thread": []}[by]
    assert [part["key"] for part in parts] == expected
    assert client.get(f"/cost?by={by}&agent=planner").status_code == 422


def test_budgets_are_made_shown_and_lifted(client, store):
    assert client.put("/budgets/daily", json={"per": "store", "every": "day", "money": 2}).status_code == 200
    assert client.put("/budgets/bad", json={"per": "store"}).status_code == 422
    recorded(store)
    (line,) = client.get("/budgets").json()["budgets"]
    assert (line["budget"]["name"], line["used"], line["share"]) == ("daily", {"money": 1_000_000_000}, 0.5)
    assert client.delete("/budgets/daily").status_code == 200
    assert client.delete("/budgets/daily").status_code == 404


def test_rules_and_alerts(client, store):
    assert client.put("/alerts/rules/failed", json={"what": "failed"}).json()["name"] == "failed"
    with suppress(RuntimeError), store.run(agent="a") as run:
        raise RuntimeError("no")
    store.flush()
    store.alerts.examine()
    (alert,) = client.get("/alerts").json()["alerts"]
    assert (alert["run"], alert["level"]) == (run.id, "critical")
    assert [rule["name"] for rule in client.get("/alerts/rules").json()["rules"]] == ["failed"]
    assert client.delete("/alerts/rules/failed").status_code == 200
    assert client.delete("/alerts/rules/failed").status_code == 404
    store.alerts.set_webhook("ops", "https://example.org/hook")
    assert client.get("/alerts/webhooks").json()["webhooks"][0]["url"] == "https://example.org/hook"
    changed = client.put("/alerts/webhooks/ops", json={"url": "https://example.org/other"})
    assert (changed.status_code, changed.json()["url"]) == (200, "https://example.org/other")
    assert client.put("/alerts/webhooks/ops", json={"url": "ftp://example.org/"}).status_code == 422
    assert client.delete("/alerts/webhooks/ops").status_code == 200
