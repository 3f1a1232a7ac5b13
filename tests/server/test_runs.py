import base64
from contextlib import suppress

import pytest

from treering.compat import services
from treering.core.ids import short_id


@pytest.fixture
def run(store):
    with store.run(agent="planner", thread="support/alice", tags=["demo"]) as run:
        run.message("user", "Where is my refund?")
        with run.tool("search_docs", input={"q": "refunds"}) as call:
            call.output = ["page 1"]
        run.message(
            "assistant", "Here.", model="m", usage={"input": 412, "output": 96}, cost="0.02", currency="EUR"
        )
    store.flush()
    return run


def test_lists_runs_with_what_they_took(client, run):
    listed = client.get("/runs").json()
    assert listed["next_cursor"] is None
    (line,) = listed["runs"]
    assert (line["id"], line["agent"], line["thread"], line["status"]) == (
        run.id,
        "planner",
        "support/alice",
        "ok",
    )
    assert line["tokens"] == 508
    assert line["cost"] == [{"currency": "EUR", "amount": 0.02}]
    assert client.get(f"/runs/{run.id}").json() == line


def test_filters_runs(client, store, run):
    with store.run(agent="coder") as other:
        pass
    store.flush()
    ids = lambda query: [each["id"] for each in client.get(f"/runs?{query}").json()["runs"]]  # noqa: E731
    assert ids("agent=coder") == [other.id]
    assert ids("tag=demo") == [run.id]
    assert ids("thread=support%2Falice&status=ok") == [run.id]
    assert ids("status=error") == []


def test_pages_runs_by_cursor(client, store):
    made = []
    for _ in range(5):
        with store.run(agent="a") as run:
            made.append(run.id)
    store.flush()
    seen, cursor = [], ""
    while cursor is not None:
        page = client.get(f"/runs?limit=2{cursor}").json()
        seen += [each["id"] for each in page["runs"]]
        cursor = None if page["next_cursor"] is None else f"&cursor={page['next_cursor']}"
    assert seen == made[::-1]


def test_a_span_whose_rows_lie_on_two_pages_is_listed_once(client, store):
    services.use(store)
    try:
        started = services.create_run()
        spans = [services.start_span(started, f"agent {number}") for number in range(3)]
        for span in spans[:2]:
            services.end_span(span)
    finally:
        services.use(None)
    for limit in (1, 2, 3, 100):
        found, cursor = [], ""
        while cursor is not None:
            page = client.get(f"/runs/{started}/spans?limit={limit}{cursor}").json()
            found += [(each["id"], each["is_open"]) for each in page["records"]]
            cursor = None if page["next_cursor"] is None else f"&cursor={page['next_cursor']}"
        assert found == [(spans[0], False), (spans[1], False), (spans[2], True)]


def test_lists_spans_once_and_fetches_their_content(client, run):
    page = client.get(f"/runs/{run.id}/spans").json()
    assert page["next_cursor"] is None
    kinds = [(each["kind"], each["type"], each["role"]) for each in page["records"]]
    assert sorted(map(str, kinds)) == sorted(
        map(
            str,
            [
                ("message", "message", "user"),
                ("span", "tool", None),
                ("message", "message", "assistant"),
            ],
        )
    )
    (tool,) = [each for each in page["records"] if each["kind"] == "span"]
    content = client.get(f"/runs/{run.id}/spans/{tool['id']}").json()
    assert (content["input"], content["output"]) == ({"q": "refunds"}, ["page 1"])


def test_events_and_errors_are_counted_in_the_same_way_everywhere(client, store):
    with suppress(RuntimeError), store.run(agent="planner") as run, run.span("planner") as planner:
        store.flush()  # it is announced: it has a row for its start as well
        planner.message("user", "Where is my refund?")
        with planner.tool("good"):
            pass
        with planner.tool("bad"):
            raise RuntimeError("the tool is gone")  # the tool, the agent and the run fail
    store.flush()
    counts = lambda told: (told["events"], told["errors"])  # noqa: E731
    line = client.get(f"/runs/{run.id}").json()
    assert counts(line) == (4, 2)
    assert counts(client.get("/runs").json()["runs"][0]) == (4, 2)
    assert len(client.get(f"/runs/{run.id}/spans").json()["records"]) == 4
    assert counts(client.get("/cost?by=kind").json()["total"]) == (4, 2)
    assert counts(client.get("/cost?by=run").json()["parts"][0]) == (4, 2)
    failed = client.get(f"/runs/{run.id}/timeline?status=error").json()["events"]
    assert [each["type"] for each in failed if each["type"] in ("agent.span.end", "tool.result")] == [
        "tool.result",
        "agent.span.end",
    ]
    assert client.get(f"/performance?by=kind&run={run.id}").json()["total"]["errors"] == 2
    assert client.get("/performance?by=run").json()["total"]["errors"] == 1  # one run, which failed
    compared = store.runs.compare(run.id, run.id).runs[0]
    assert (compared.step_count, compared.errors, compared.cost.events) == (4, 2, 4)
    (agent,) = store.runs.compare_agents("planner").agents
    assert (agent.steps, agent.errors, agent.runs, agent.failed_runs) == (4, 2, 1, 1)


def test_short_ids_are_accepted(client, store, run):
    short = short_id(run.id)
    for path in ("", "/spans", "/timeline", "/cost", "/replay", f"/compare/{short}"):
        assert client.get(f"/runs/{short}{path}").json() == client.get(f"/runs/{run.id}{path}").json(), path
    draft = store.thread("support/alice").append({"role": "user", "content": "Hello."})
    found = client.get(f"/threads/support%2Falice/checkpoints/{draft.short_id}").json()
    assert found["checkpoint"]["id"] == draft.id
    other = "y" if run.id[5] == "z" else "z"
    assert client.get(f"/runs/{run.id[:5]}{other}").status_code == 404


def test_timeline_and_cost_have_the_shapes_of_the_document(client, run):
    timeline = client.get(f"/runs/{run.id}/timeline").json()
    assert [each["type"] for each in timeline["events"]] == ["message", "tool.call", "tool.result", "message"]
    cost = client.get(f"/runs/{run.id}/cost").json()
    assert cost["total"] == {"agent": None, "tokens": 508, "cost_eur": 0.02}


def test_adds_up_by_agent_and_day(client, run):
    table = client.get("/cost?by=agent").json()
    assert [(each["key"], each["tokens"]) for each in table["parts"]] == [("planner", 508)]
    (day,) = client.get("/cost").json()["parts"]
    assert day["key"] == run.info.started_at.date().isoformat()


@pytest.mark.parametrize(
    "path, status, word",
    [
        ("/runs/nothing", 404, "not found"),
        ("/runs?limit=0", 422, "limit"),
        ("/runs?colour=red", 422, "colour"),
        ("/runs?limit=many", 422, "limit"),
        ("/runs?limit=2&limit=3", 422, "twice"),
        ("/runs/x/timeline?cursor=%00", 404, "not found"),
        ("/cost?since=2026-13-01", 422, "date"),
        ("/nowhere", 404, "openapi.json"),
    ],
)
def test_wrong_questions_get_a_problem(client, path, status, word):
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert word in answer.json()["detail"]


def test_an_unchanged_reply_is_not_sent_again(client, run):
    first = client.get(f"/runs/{run.id}/timeline")
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = client.get(f"/runs/{run.id}/timeline", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
    assert client.get(f"/runs/{run.id}/timeline", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "position", ['["9e99", []]', f'["{2**63}.1", []]', f'["1.1", [["a", {2**63}]]]', "{}"]
)
def test_a_cursor_that_was_made_up_is_refused(client, run, position):
    cursor = base64.urlsafe_b64encode(position.encode()).decode()
    assert client.get(f"/runs/{run.id}/timeline", params={"cursor": cursor}).status_code == 422
    for made_up in ("x", str(2**63), f"-{2**63}", "1.1.1"):
        listed = made_up if made_up != "1.1.1" else f"{2**63}.run/x"
        assert client.get("/runs", params={"cursor": listed}).status_code == 422
        assert client.get(f"/runs/{run.id}/spans", params={"cursor": made_up + ".1"}).status_code == 422


def test_a_timeline_is_narrowed_and_also_of_a_thread(client, store, run):
    with store.run(agent="planner", thread="support/alice") as second:
        second.message("user", "Thank you.")
    store.flush()

    def told(path):
        return [(each["run_id"], each["label"]) for each in client.get(path).json()["events"]]

    tool = [(run.id, "call search_docs"), (run.id, "search_docs result")]
    thanks = (second.id, "user message")
    assert told(f"/runs/{run.id}/timeline?kind=tool&status=ok&agent=planner&text=page+refunds") == tool
    call = client.get(f"/runs/{run.id}/timeline?kind=tool").json()["events"][0]["ref"]["tool_call_id"]
    assert told(f"/runs/{run.id}/timeline?span={call}") == tool
    assert told("/threads/support%2Falice/timeline")[-1] == thanks
    assert told("/threads/support%2Falice/timeline?text=thanks+you") == [thanks]
    assert told("/threads/support%2Falice/timeline?namespace=other") == []
    first = client.get("/threads/support%2Falice/timeline?limit=4").json()
    assert told(f"/threads/support%2Falice/timeline?cursor={first['next_cursor']}") == [thanks]
    for query, status in (("span=nope", 404), ("text=...", 422), ("nope=1", 422), ("cursor=x", 422)):
        assert client.get(f"/runs/{run.id}/timeline?{query}").status_code == status


def test_a_listed_run_says_what_was_asked_and_what_came_of_it(client, store, run):
    with suppress(ValueError), store.run(agent="coder", id="failed") as failed:
        failed.message("user", "Publish it.")
        raise ValueError("the index refused")
    with store.run(agent="graph", id="spans") as spans, spans.span("root", input={"q": "How long?"}) as root:
        for _ in range(20):
            with root.tool("look", {"at": "page"}) as call:
                call.output = "nothing"
        root.output = {"messages": [{"type": "ai", "content": "Two days."}]}
    with store.run(agent="silent", id="silent"):
        pass
    store.flush()
    lines = {each["id"]: each for each in client.get("/runs").json()["runs"]}
    said = {name: (line["input"], line["output"], line["error"]) for name, line in lines.items()}
    assert said == {
        run.id: ("Where is my refund?", "Here.", None),
        "failed": ("Publish it.", None, "ValueError: the index refused"),
        "spans": ("How long?", "Two days.", None),
        "silent": (None, None, None),
    }


@pytest.mark.usefixtures("run")
def test_a_run_says_whether_its_thread_was_ever_saved(client, store):
    with store.run(agent="coder", thread="kept", id="other"):
        store.thread("kept").append({"role": "user", "content": "Hello"})
    store.flush()
    saved = {each["thread"]: each["has_thread"] for each in client.get("/runs").json()["runs"]}
    assert saved == {"support/alice": False, "kept": True}
    assert client.get("/runs/other").json()["has_thread"] is True


def test_runs_are_selected_by_their_start_and_sorted_by_what_they_took(client, store, run):
    with store.run(agent="coder", id="dear") as dear:
        dear.message("assistant", "Done.", usage={"output": 9}, cost="7.00", currency="EUR")
    with store.run(agent="coder", id="free"):
        pass
    store.flush()
    ids = lambda query: [each["id"] for each in client.get(f"/runs?{query}").json()["runs"]]  # noqa: E731
    assert ids("sort=cost") == ["dear", run.id, "free"]
    assert ids("sort=tokens&limit=2") == [run.id, "dear"]
    assert ids("sort=tokens&agent=coder") == ["dear", "free"]
    assert set(ids("sort=duration")) == {"dear", "free", run.id}
    middle = store.runs.load("dear").started_at_us
    assert ids(f"since_us={middle}") == ["free", "dear"]
    assert ids(f"until_us={middle}") == [run.id]
    assert client.get("/runs?sort=cost&cursor=1").status_code == 422
