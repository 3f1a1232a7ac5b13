"""Reruns: another model, prompt or parameter from a step on, in a fork that leaves the original alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import treering
from tests.replays.provider import Provider, plan
from tests.server.running import remote
from treering.agent import create_agent, tool
from treering.replays.comparison import compare_reruns
from treering.replays.fixtures import read_test, record_test, write_test
from treering.replays.recorded import run_recorded
from treering.replays.replay import Diverged
from treering.runs.exchanges import read_exchanges

PLAN = plan(
    ("I begin.", [("write", {"name": "a.txt", "text": "one"})]),
    ("I go on.", [("write", {"name": "b.txt", "text": "two"})]),
    ("And once more.", [("write", {"name": "a.txt", "text": "three"})]),
    "Done.",
)
STEPS = 7
"""Four calls of the model and three of the tool."""


def model_at(url: str) -> Any:
    """A model behind HTTP."""

    def ask(messages: Any, tools: Any) -> dict:
        body = {
            "model": "gpt-5",
            "messages": [{name: each[name] for name in each if name != "usage"} for each in messages],
            "tools": [each.as_openai() for each in tools],
        }
        answer = httpx.post(f"{url}/v1/chat/completions", json=body).raise_for_status().json()
        return {**answer["choices"][0]["message"], "usage": answer["usage"]}

    return ask


def work(url: str, folder: str, prompt: str = PLAN) -> str:
    """An agent that writes files into its folder, with a model behind HTTP."""

    def write(name: str, text: str) -> str:
        """Write a file."""
        (Path(folder) / name).write_text(text)
        return f"wrote {name}"

    return create_agent(model=model_at(url), tools=[write], name="writer").generate(prompt=prompt).text


def contents(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in sorted(folder.iterdir()) if each.is_file()}


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for each in sorted(folder.rglob("*")):
        stat = each.lstat()
        found.update(f"{each}:{stat.st_mode}:{stat.st_mtime_ns}:".encode())
        found.update(each.read_bytes() if each.is_file() else b"")
    return found.hexdigest()


@pytest.fixture
def recorded(server, store, tmp_path) -> str:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "before.txt").write_text("was here")
    with treering.record(
        store, agent="writer", workspace=folder, entry=work, arguments=[server.url, str(folder)]
    ) as run:
        work(server.url, str(folder))
    assert len(read_exchanges(store.engine, store.space, run.id)) == STEPS
    server.asked.clear()
    return run.id


@pytest.mark.parametrize("step", range(1, STEPS + 2))
def test_a_rerun_is_real_from_its_step_on_and_a_recording_before(
    server, store, recorded, tmp_path, step
) -> None:
    original = digest(tmp_path / "work")
    made = treering.rerun(store, recorded, from_step=step, folder=tmp_path / "forks")
    (one,) = made.reruns
    assert one.status == "ok", one.error
    exchanges = read_exchanges(store.engine, store.space, one.run)
    assert [each.is_replayed for each in exchanges] == [each.step < step for each in exchanges]
    assert server.count == sum(each.kind == "http" for each in exchanges if each.step >= step)
    assert one.departure is None, "the same model says the same"
    assert one.files == ()
    assert one.final == made.original.final == "Done."
    assert contents(Path(one.folder or "")) == {
        "a.txt": "three",
        "b.txt": "two",
        "before.txt": "was here",
    }
    assert digest(tmp_path / "work") == original


def test_another_model_departs_at_or_after_the_step_and_nowhere_before(
    server, store, recorded, tmp_path
) -> None:
    original = digest(tmp_path / "work")
    made = treering.rerun(store, recorded, from_step=3, model=["other-1", "other-2", "gpt-5-mini"], repeat=2)
    assert [(each.variant, each.departure and each.departure.step) for each in made.reruns] == [
        ("other-1", 3),
        ("other-1", 3),
        ("other-2", 5),
        ("other-2", 5),
        ("gpt-5-mini", None),
        ("gpt-5-mini", None),
    ]
    assert all(each["model"] in ("other-1", "other-2", "gpt-5-mini") for _, each in server.asked)
    one, _, two, *_ = made.reruns
    assert contents(Path(one.folder or "")) == {"a.txt": "one", "before.txt": "was here"}
    assert {(each.path, each.change) for each in one.files} == {("a.txt", "changed"), ("b.txt", "removed")}
    assert contents(Path(two.folder or "")) == {"a.txt": "one", "b.txt": "two", "before.txt": "was here"}
    assert one.final.endswith("But I am another model.")
    assert (one.messages, one.common_messages, made.original.messages) == (4, 3, 8)
    assert one.tokens == 110
    assert made.original.tokens == 330
    first, second, third = made.variants
    assert (first.variant, first.runs, first.ok, first.first_departure) == ("other-1", 2, 2, 3)
    assert first.tokens is not None
    assert (first.tokens.mean, first.tokens.deviation) == (110, 0)
    assert second.first_departure == 5
    assert third.first_departure is None
    assert digest(tmp_path / "work") == original


def test_prompt_and_parameters_are_changed_from_the_step_on(server, store, recorded) -> None:
    made = treering.rerun(
        store, recorded, from_step=4, prompt="Be brief.", parameters={"temperature": 0, "seed": 7}
    )
    assert [each["temperature"] for _, each in server.asked] == [0, 0]
    assert all(each["messages"][0] == {"role": "system", "content": "Be brief."} for _, each in server.asked)
    assert made.reruns[0].departure is None
    assert made.reruns[0].variant == "prompt 'Be brief.', seed=7, temperature=0"
    kept = read_exchanges(store.engine, store.space, made.reruns[0].run)
    assert [each.body.get("temperature") for each in kept if each.kind == "http"] == [None, None, 0, 0]


def test_files_are_verified_in_each_fork_and_in_what_the_original_left(store, recorded) -> None:
    verify = f"{sys.executable} -c \"import sys; sys.exit(open('a.txt').read() != 'three')\""
    made = treering.rerun(store, recorded, from_step=3, model=["other-2", "gpt-5"], verify=verify)
    assert made.original.verify is not None
    assert made.original.verify.is_ok
    assert [each.verify and each.verify.exit_code for each in made.reruns] == [1, 0]
    assert [each.verified for each in made.variants] == [0, 1]


def test_a_comparison_is_read_again_from_the_store(store, recorded) -> None:
    first = treering.rerun(store, recorded, from_step=5, model="other-2")
    second = treering.rerun(store, recorded, from_step=5, model="gpt-5-mini")
    assert compare_reruns(store, recorded) == second
    assert compare_reruns(store, recorded, group=first.group) == first
    with pytest.raises(treering.errors.NotFound, match="nothing"):
        compare_reruns(store, recorded, group="nothing")


def test_a_rerun_can_be_rerun(server, store, recorded, tmp_path) -> None:
    first = treering.rerun(store, recorded, from_step=3, folder=tmp_path / "forks")
    server.asked.clear()
    again = treering.rerun(store, first.reruns[0].run, from_step=6, model="other-3")
    assert again.reruns[0].departure is not None
    assert again.reruns[0].departure.step == 7
    assert server.count == 1
    assert contents(Path(again.reruns[0].folder or ""))["a.txt"] == "three"


def test_an_agent_that_asks_otherwise_before_the_step_is_stopped(server, store, recorded, tmp_path) -> None:
    changed = PLAN + " Please."
    with pytest.raises(Diverged) as raised:
        treering.rerun(store, recorded, from_step=4, arguments=[server.url, str(tmp_path / "work"), changed])
    assert raised.value.divergence.step == 1
    assert server.count == 0


def test_an_error_of_a_rerun_is_a_result_and_the_others_go_on(server, store, recorded) -> None:
    server.fails += [500]
    made = treering.rerun(store, recorded, from_step=3, repeat=2)
    assert [each.status for each in made.reruns] == ["error", "ok"]
    assert "500" in (made.reruns[0].error or "")


def stubborn(url: str, original: str) -> str:
    """An agent that writes to a file whose name it knows by heart: here, no text of its arguments has it."""
    answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": []}).text
    with open(original[::-1], "w") as file:  # noqa: PTH123 - Path changes // to /
        file.write("mine")
    return answer


@pytest.mark.parametrize(
    "name", ["{0}/work/note.txt", "/{0}/work/note.txt", "{0}/folder/note.txt", "{0}/file.txt"]
)
def test_a_rerun_cannot_write_to_the_folder_of_the_original(server, store, tmp_path, name) -> None:
    folder = tmp_path / "work"
    (tmp_path / "folder").symlink_to(folder)
    (tmp_path / "file.txt").symlink_to(folder / "note.txt")
    arguments = [server.url, name.format(tmp_path)[::-1]]
    with treering.record(store, workspace=folder, entry=stubborn, arguments=arguments) as run:
        stubborn(*arguments)
    before = digest(folder)
    made = treering.rerun(store, run.id, from_step=1)
    assert made.reruns[0].status == "error"
    assert "belongs to the original" in (made.reruns[0].error or "")
    assert digest(folder) == before
    (folder / "note.txt").write_text("afterwards everything is as usual")


@pytest.mark.parametrize("name", ["work", "./work", Path("work")], ids=repr)
def test_a_relative_name_of_the_folder_leads_to_that_of_the_fork(
    server, store, tmp_path, monkeypatch, name
) -> None:
    monkeypatch.chdir(tmp_path)
    with treering.record(store, workspace="work", entry=work, arguments=[server.url, name]) as run:
        work(server.url, str(name))
    original = digest(tmp_path / "work")
    (one,) = treering.rerun(store, run.id, from_step=2).reruns
    assert (one.status, one.departure, one.files) == ("ok", None, ()), one.error
    assert contents(Path(one.folder or "")) == {"a.txt": "three", "b.txt": "two"}
    assert digest(tmp_path / "work") == original


def by_name(url: str, folder: str) -> str:
    """An agent whose prompt, and so its model, names files by their folder."""
    calls = [("write", {"path": f"{folder}/{name}.txt", "text": "paperwork/notes"}) for name in "abc"]
    prompt = f"Write into {folder}/. " + plan(("I begin.", calls[:2]), ("I go on.", calls[2:]), "Done.")

    def write(path: str, text: str) -> str:
        """Write a file."""
        Path(path).write_text(text)
        return f"wrote {path}"

    return create_agent(model=model_at(url), tools=[write]).generate(prompt=prompt).text


@pytest.mark.parametrize("name", ["work", "./work", "deep/work"])
def test_relative_names_in_prompts_and_calls_lead_to_the_fork(
    server, store, tmp_path, monkeypatch, name
) -> None:
    monkeypatch.chdir(tmp_path)
    with treering.record(store, workspace=name, entry=by_name, arguments=[server.url, name]) as run:
        by_name(server.url, name)
    original = digest(tmp_path / name)
    asked = server.count
    with treering.replay(store, run.id, complete=True):
        assert by_name(server.url, name) == "Done."
    assert server.count == asked
    steps = len(read_exchanges(store.engine, store.space, run.id))
    for step in range(1, steps + 2) if name == "work" else (steps - 2,):
        (one,) = treering.rerun(store, run.id, from_step=step).reruns
        assert (one.status, one.departure, one.files) == ("ok", None, ()), (step, one.error)
        assert contents(Path(one.folder or "")) == dict.fromkeys(
            ("a.txt", "b.txt", "c.txt"), "paperwork/notes"
        )
        assert digest(tmp_path / name) == original
    test = write_test(record_test(store, run.id, "named"), tmp_path / "recordings")
    made = run_recorded(read_test(test.path), folder=tmp_path / "replayed")
    assert (made.divergence, sorted(made.files)) == (None, ["a.txt", "b.txt", "c.txt"])
    made.store.close()


# Threads, memory and effects


def remember(url: str) -> str:
    """An agent with a thread and memory, opened by their names."""
    store = STORES["current"]
    thread = store.thread("support/alice")
    known = store.memory.in_namespace("alice").get("tone")
    tone = "none" if known is None else known.content
    said = [{"role": "user", "content": f"Be {tone}."}]
    for number in range(3):
        answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "gpt-5", "messages": said}).json()[
            "choices"
        ][0]["message"]["content"]
        said.append({"role": "assistant", "content": answer})
        thread.append({"role": "assistant", "content": f"{number}: {answer}"})
        store.memory.in_namespace("alice").save("tone", f"polite {number}")
        said.append({"role": "user", "content": store.memory.in_namespace("alice").get("tone").content})
    return json.dumps(said)


STORES: dict[str, Any] = {}


def test_a_rerun_has_its_own_thread_and_memory_as_of_then(server, store) -> None:
    STORES["current"] = store
    store.memory.in_namespace("alice").save("tone", "friendly")
    store.memory.in_namespace("alice").save("old", "deleted later")
    store.thread("support/alice").append({"role": "user", "content": "hello"})
    with treering.record(
        store, thread=store.thread("support/alice"), entry=remember, arguments=[server.url]
    ) as run:
        remember(server.url)
    store.memory.in_namespace("alice").save("tone", "angry")
    store.memory.in_namespace("alice").delete("old")
    store.memory.in_namespace("alice").save("new", "came later")
    thread = store.thread("support/alice")
    before = [
        thread.head,
        list(store.memory.in_namespace("alice").query()),
        [each.version for each in store.memory.in_namespace("alice").history("tone")],
    ]
    made = treering.rerun(store, run.id, from_step=2, model="gpt-5-mini")
    (one,) = made.reruns
    assert (one.status, one.departure) == ("ok", None), one.error
    assert before == [
        store.thread("support/alice").head,
        list(store.memory.in_namespace("alice").query()),
        [each.version for each in store.memory.in_namespace("alice").history("tone")],
    ]
    fork = store.thread(one.thread or "")
    assert [each["content"] for each in fork.load().messages] == [
        each["content"] for each in thread.load().messages
    ]
    assert fork.id != thread.id
    (namespace,) = [each for each in store.memory.namespaces() if each.startswith("rerun/")]
    forked = {each.id: each.content for each in store.memory.in_namespace(namespace).query()}
    assert forked == {"tone": "polite 2", "old": "deleted later"}
    assert store.verify().ok


def by_another_name(url: str, address: str) -> str:
    """An agent that opens the store itself."""
    with treering.open(address) as STORES["current"]:
        return remember(url)


@pytest.mark.parametrize("name", ["/{0}", "{0}/../{1}", "{0}/../link"])
def test_a_rerun_has_its_own_thread_and_memory_by_whatever_name_the_store_is_opened(
    server, store, tmp_path, name
) -> None:
    folder = Path(store.url.removeprefix("sqlite:///"))
    (tmp_path / "link").symlink_to(folder)
    arguments = [server.url, name.format(folder, folder.name)]
    with treering.record(store, thread="support/alice", entry=by_another_name, arguments=arguments) as run:
        by_another_name(*arguments)
    store.flush()
    memory = store.memory.in_namespace("alice")
    before = store.thread("support/alice").head, list(memory.query())
    (one,) = treering.rerun(store, run.id, from_step=2).reruns
    assert (one.status, one.departure) == ("ok", None), one.error
    assert before == (store.thread("support/alice").head, list(memory.query()))
    assert len(store.thread(one.thread or "").load().messages) == 3


def held(url: str) -> None:
    httpx.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": []})
    STORES["thread"].append({"role": "user", "content": "written to the original"})


def test_a_thread_that_was_opened_before_is_refused(server, store) -> None:
    STORES["thread"] = thread = store.thread("t")
    with treering.record(store, thread="t", entry=held, arguments=[server.url]) as run:
        held(server.url)
    made = treering.rerun(store, run.id)
    assert "being rerun" in (made.reruns[0].error or "")
    assert len(thread.load().messages) == 1


PAID: list[str] = []


@tool(replay="once")
def pay(to: str) -> str:
    """Pay somebody."""
    PAID.append(to)
    return f"paid {to}"


def paying(messages: Any, _tools: Any) -> dict:
    turn = sum(each["role"] == "assistant" for each in messages)
    if turn < 2:
        return call(turn, ["alice", "bob"][turn])
    return {"role": "assistant", "content": "Paid."}


def generous(messages: Any, _tools: Any) -> dict:
    """Pays bob, as in the recording, and then carol, who is not in it."""
    turn = sum(each["role"] == "assistant" for each in messages)
    if turn < 3:
        return call(turn, ["alice", "bob", "carol"][turn])
    return {"role": "assistant", "content": "Paid everybody."}


def call(turn: int, to: str) -> dict:
    function = {"name": "pay", "arguments": json.dumps({"to": to})}
    return {"role": "assistant", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}


@pytest.mark.parametrize("kept", [False, True], ids=["alone", "in a thread"])
def test_effects_are_answered_from_the_recording_or_refused(store, kept) -> None:
    PAID.clear()
    agent = create_agent(model=paying, tools=[pay], checkpointer=store if kept else None)
    options: dict[str, Any] = {"prompt": "Pay them."} | ({"thread_id": "t"} if kept else {})
    with treering.record(store, thread="t" if kept else None) as run:
        agent.generate(**options)
    assert PAID == ["alice", "bob"]
    made = treering.rerun(store, run.id, from_step=3, model=generous, entry=agent, arguments=options)
    assert PAID == ["alice", "bob"]
    (one,) = made.reruns
    assert one.status == "ok", one.error
    assert one.final == "Paid everybody."
    (refused,) = [each for each in read_exchanges(store.engine, store.space, one.run) if each.error]
    assert refused.request["arguments"] == {"to": "carol"}
    assert refused.error is not None
    assert "must not be repeated" in refused.error.message
    assert one.departure is not None
    assert one.departure.step == 5


def test_async_callers_and_entries(server, store) -> None:
    async def entry(text: str) -> str:
        async with httpx.AsyncClient() as client:
            body = {"model": "gpt-5", "messages": [{"role": "user", "content": text}]}
            return (await client.post(f"{server.url}/v1/chat/completions", json=body)).text

    async def main() -> Any:
        async with treering.record(store) as run:
            await entry("hello")
            await entry("again")

        async def both() -> None:
            await entry("hello")
            await entry("again")

        return await treering.rerun_async(store, run.id, from_step=2, model="mini", entry=both)

    made = asyncio.run(main())
    assert made.reruns[0].status == "ok", made.reruns[0].error
    assert [each["model"] for _, each in server.asked] == ["gpt-5", "gpt-5", "mini"]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"from_step": 0}, "steps 1 to 7"),
        ({"from_step": 9}, "steps 1 to 7"),
        ({"repeat": 0}, "repeat=0"),
        ({"entry": "nowhere:nothing"}, "nowhere:nothing"),
        ({"entry": "nothing"}, "module:function"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(server, store, recorded, options, said) -> None:
    with pytest.raises(treering.errors.TreeringError, match=said):
        treering.rerun(store, recorded, **options)
    assert server.count == 0
    assert len(list(store.runs.each())) == 1


def test_a_run_without_an_entry_says_how_to_name_one(server, store) -> None:
    with treering.record(store) as run:
        httpx.post(f"{server.url}/v1/chat/completions", json={"model": "m", "messages": []})
    with pytest.raises(treering.errors.NotFound, match="entry="):
        treering.rerun(store, run.id)


def test_a_server_is_not_needed_before_the_step(server: Provider, store, recorded) -> None:
    made = treering.rerun(store, recorded, from_step=STEPS + 1)
    assert server.count == 0
    assert made.reruns[0].tokens == 0


def test_a_run_in_a_remote_store_is_recorded_replayed_and_rerun(server, tmp_path) -> None:
    folder = tmp_path / "work"
    arguments = [server.url, str(folder)]
    with remote() as far:
        with treering.record(far, agent="writer", workspace=folder, entry=work, arguments=arguments) as run:
            work(*arguments)
        asked = server.count
        with treering.replay(far, run.id, complete=True):
            assert work(*arguments) == "Done."
        assert server.count == asked
        made = treering.rerun(far, run.id, from_step=3, model="other-2", folder=tmp_path / "forks")
        (one,) = made.reruns
        assert one.status == "ok", one.error
        assert (one.departure and one.departure.step) == 5
        assert contents(Path(one.folder or "")) == {"a.txt": "one", "b.txt": "two"}
        assert compare_reruns(far, run.id) == made
        test = write_test(record_test(far, run.id, "far"), tmp_path / "recordings")
        assert [each.step for each in test.steps] == list(range(1, STEPS + 1))
