"""Stepping through runs: what each step shows, breakpoints, and runs of 10,000 steps."""

from __future__ import annotations

from pathlib import Path

import pytest

import treering
from tests.replays.provider import plan
from tests.replays.test_replay import chat
from treering.agent import create_agent
from treering.errors import InvalidInput, NotFound
from treering.replays import steps
from treering.replays.steps import (
    Breakpoint,
    StepView,
    count_steps,
    each_step,
    find_step,
    step_page,
    step_view,
)


def model(messages, _tools):
    said = sum(each["role"] == "assistant" for each in messages)
    if said < 2:
        call = {"name": "write", "arguments": f'{{"text": "draft {said}\\n"}}'}
        calls = [{"id": f"c{said}", "type": "function", "function": call}]
        return {"role": "assistant", "content": f"Draft {said}.", "tool_calls": calls, "usage": {"input": 10}}
    return {"role": "assistant", "content": "Done.", "usage": {"input": 10}}


@pytest.fixture
def written(store, tmp_path) -> str:
    """A recorded run: two calls of a tool that writes a file and memory, and an answer."""
    folder = tmp_path / "work"
    folder.mkdir()

    def write(text: str) -> str:
        """Write the report."""
        with (folder / "report.md").open("a") as file:
            file.write(text)
        known = store.memory.get("report")
        store.memory.save("report", text if known is None else known.content + text)
        store.memory.search("draft")
        return "written"

    agent = create_agent(model=model, tools=[write], checkpointer=store)
    with treering.record(store, agent="writer", workspace=folder, thread="reports/alice") as run:
        agent.generate(thread_id="reports/alice", prompt="Write.", checkpoint_after_tool_call=True)
    store.flush()
    return run.id


def views(store, run: str) -> list[StepView]:
    return [step_view(store, run, number) for number in range(1, count_steps(store, run) + 1)]


def test_the_calls_of_a_recorded_run_are_its_steps(store, written):
    steps = list(each_step(store, written))
    assert [(each.number, each.type, each.name, each.call) for each in steps] == [
        (1, "llm", "model", 1),
        (2, "tool", "write", 2),
        (3, "llm", "model", 3),
        (4, "tool", "write", 4),
        (5, "llm", "model", 5),
    ]
    assert [each.tokens_so_far for each in steps] == [10, 10, 20, 20, 30]


def test_each_step_shows_the_conversation_of_then_and_what_is_new(store, written):
    found = [each.messages for each in views(store, written)]
    assert [(each.total, each.new) for each in found if each] == [(2, 0), (2, 2), (4, 2), (4, 4), (6, 4)]
    assert [each.role for each in found[4].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    last = step_view(store, written, 5, messages=2).messages
    assert (last.total, last.first, len(last.messages)) == (6, 4, 2)


def test_each_step_shows_the_files_of_then_and_their_diff(store, written):
    changes = [
        [(each.path, each.change, (each.text or "").splitlines()[-1]) for each in view.files.changes]
        for view in views(store, written)
        if view.files
    ]
    assert changes == [
        [],
        [("report.md", "added", "+draft 0")],
        [],
        [("report.md", "changed", "+draft 1")],
        [],
    ]


def test_each_step_shows_the_state_of_then_and_its_changes(store, written):
    found = [each.state for each in views(store, written)]
    assert [each.number for each in found if each] == [0, 1, 2, 3, 4]
    assert all(each.changes for each in found if each)
    assert "treering.agent" in found[0].value
    assert "treering.agent" not in found[4].value


@pytest.mark.parametrize("then", ["rewound", "rewound and gone on"])
def test_steps_show_the_state_that_a_rewind_has_left_behind(store, written, then):
    before = [each.state for each in views(store, written)]
    thread = store.thread("reports/alice")
    thread.rewind(to=thread.at(0))
    if then == "rewound and gone on":
        thread.append({"role": "user", "content": "Otherwise."})
    assert [each.state for each in views(store, written)] == before


def test_each_step_shows_what_it_read_and_wrote_of_memory(store, written):
    first, second = [
        [(each.what, each.id or each.query, each.version) for each in view.memory]
        for view in views(store, written)
        if view.memory
    ]
    assert first == [("read", "report", None), ("write", "report", 1), ("search", "draft", None)]
    assert second == [("read", "report", None), ("write", "report", 2), ("search", "draft", None)]
    texts = [each.text for view in views(store, written) for each in view.memory if each.what == "write"]
    assert texts[0] == "draft 0\n"
    assert "+draft 1" in texts[1]


def test_a_run_without_recorded_calls_has_its_messages_and_spans_as_steps(store):
    with store.run("planner") as run:
        run.message("user", "Where is my refund?")
        with run.tool("search", input={"q": "refunds"}) as call:
            call.output = "none"
        with pytest.raises(ValueError, match="refused"), run.tool("refund", input={}):
            raise ValueError("refused")
        run.message("assistant", "It failed.")
    store.flush()
    steps = list(each_step(store, run.id))
    assert [(each.type, each.is_error) for each in steps] == [
        ("message", False),
        ("tool", False),
        ("tool", True),
        ("message", False),
    ]
    view = step_view(store, run.id, 3)
    assert view.error == "ValueError: refused"
    assert view.messages.total == 1
    assert step_view(store, run.id, 4).messages.total == 2
    assert (step_view(store, run.id, 2).input_value, step_view(store, run.id, 2).output_value) == (
        {"q": "refunds"},
        "none",
    )


def test_a_breakpoint_stops_at_a_tool_an_error_a_cost_or_a_text(store):
    with store.run("planner") as run:
        run.message("user", "Begin.")
        with run.tool("search", input={"q": "refunds"}) as call:
            call.output = "three refunds"
        run.message("assistant", "Let me think.", model="gpt-5", usage={"input": 1000, "output": 1000})
        with pytest.raises(ValueError), run.tool("refund", input={}):  # noqa: PT011
            raise ValueError
        run.message("assistant", "I am done.", model="gpt-5", usage={"input": 1000, "output": 1000})
    store.flush()

    def stop(after: int = 0, *, back: bool = False, **wanted) -> int | None:
        found = find_step(store, run.id, Breakpoint(**wanted), after=after, back=back)
        return None if found is None else found.number

    assert stop(tool=("refund",)) == 4
    assert stop(tool=("search", "refund")) == 2
    assert stop(tool=("search", "refund"), after=2) == 4
    assert stop(error=True) == 4
    assert stop(cost_above=0.001) == 3
    assert stop(cost_above=0.02) == 5
    assert stop(cost_above=1.0) is None
    assert stop(text="THREE refunds") == 2
    assert stop(text="done", after=3) == 5
    assert stop(error=True, text="think") == 3
    assert stop(tool=("search", "refund"), after=5, back=True) == 4
    assert stop(tool=("search",), after=2, back=True) is None


def test_a_text_is_found_in_a_recorded_answer(server, store):
    with treering.record(store) as run:
        chat(server, plan("It rains."))
        chat(server, plan("The sun shines."), stream=True)
    store.flush()
    found = find_step(store, run.id, Breakpoint(text="sun shines"))
    assert (found.type, found.role, found.call) == ("message", "assistant", 3)
    view = step_view(store, run.id, 1)
    assert view.output[0].parts[0].text == "It rains."
    assert view.input[0].role == "user"


def test_a_breakpoint_needs_a_condition():
    with pytest.raises(InvalidInput, match="condition"):
        Breakpoint()


def test_a_step_that_is_not_there_is_named(store, written):
    with pytest.raises(NotFound, match="has no step 6; it has 5"):
        step_view(store, written, 6)
    with pytest.raises(InvalidInput, match="cursor"):
        step_page(store, written, cursor="x")


def test_ten_thousand_steps_are_read_in_pages_whose_sums_go_on(tmp_path, monkeypatch):
    with treering.open(tmp_path / "long") as store:
        with store.run("counter") as run:
            for number in range(10_000):
                run.message("assistant", f"step {number}", usage={"input": 1})
        store.flush()
        first = step_page(store, run.id, first=100)
        assert len(first.steps) <= 100
        second = step_page(store, run.id, first=100, cursor=first.next_cursor)
        assert second.steps[0].number == first.steps[-1].number + 1
        assert second.steps[-1].tokens_so_far == second.steps[-1].number
        assert count_steps(store, run.id) == 10_000
        assert find_step(store, run.id, Breakpoint(text="step 9876")).number == 9877
        view = step_view(store, run.id, 7000, messages=5)
        assert (view.messages.total, view.messages.new, len(view.messages.messages)) == (7000, 6999, 5)
        read: list[str | None] = []

        def counted(*given, **options):
            read.append(options["cursor"])
            return step_page(*given, **options)

        monkeypatch.setattr(steps, "step_page", counted)
        for number in (7000, 7001, 3, 9_999, 10_000):
            assert step_view(store, run.id, number).step.tokens_so_far == number
        assert count_steps(store, run.id) == 10_000
        assert len(read) <= 12, "where pages begin is known"
        with store.run("counter", id=run.id) as again:
            again.message("assistant", "one more")
        store.flush()
        assert count_steps(store, run.id) == 10_001


def test_a_remote_store_steps_as_a_local_one(store, written):
    from tests.server.running import running

    with running(store) as url, treering.open(url) as remote:
        assert [each.name for each in each_step(remote, written)] == [
            each.name for each in each_step(store, written)
        ]
        assert step_view(remote, written, 2).files == step_view(store, written, 2).files


def test_the_command_line_steps_through_a_run(store, written, capsys, monkeypatch):
    from treering.cli.main import main

    def run(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["treering", *words, "--store", str(Path(store.url[9:]))])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    assert "write" in run("step", written)
    shown = run("step", written, "2")
    assert "added    report.md" in shown
    assert "write    report" in shown
    assert run("step", written, "2", "--tool", "write").startswith("step 4: tool write")
    assert '"total":2' in run("step", written, "1", "--json").replace(" ", "")
