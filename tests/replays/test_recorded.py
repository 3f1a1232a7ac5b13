"""Recorded tests: the file, what a run of it tells, and that every regression is caught."""

from __future__ import annotations

import asyncio
import json
import random
import stat
import string
import sys
import time
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import treering
from tests.replays import test_frameworks as frameworks
from tests.replays.provider import PLAIN, Provider, plan
from tests.replays.refunds import PAID, QUESTION, Refunds
from tests.replays.test_proxy import PROGRAM, WORK, upstreams
from treering.agent import create_agent
from treering.errors import Conflict, InvalidInput, NotFound
from treering.replays.capture import decode_body
from treering.replays.commands import record_command
from treering.replays.fixtures import RecordedTest, list_tests, read_test, record_test, write_test
from treering.replays.recorded import ReplayedRun, record_again, run_recorded
from treering.replays.replay import Diverged, NetworkBlocked, Tolerance
from treering.runs.exchanges import Exchange

STEPS = 7


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> RecordedTest:
    """The refund of the tests, recorded once; its provider is gone when it is replayed."""
    from tests.replays.provider import provider

    folder = tmp_path_factory.mktemp("refund")
    (folder / "work").mkdir()
    (folder / "work" / "report.md").write_text("Report\n")
    with provider() as server, treering.open(folder / "store") as store:
        agent = Refunds(server.url)
        arguments = [str(folder / "work")]
        with treering.record(
            store, agent="refunds", workspace=folder / "work", entry=agent, arguments=arguments
        ) as run:
            agent(*arguments)
        return write_test(record_test(store, run.id, "refund"), folder / "recordings")


def replayed(test: RecordedTest, agent: Any, folder: Path, **options: Any) -> ReplayedRun:
    assert test.path is not None
    made = run_recorded(read_test(test.path), agent=agent, folder=folder / str(uuid.uuid4()), **options)
    made.store.close()
    return made


def diverged(test: RecordedTest, agent: Any, folder: Path, **options: Any) -> str:
    """What a developer is told whose change broke the test."""
    with pytest.raises(Diverged) as raised:
        replayed(test, agent, folder, **options)
    return raised.value.divergence.describe()


def test_a_recorded_test_says_what_the_agent_did(recording, tmp_path) -> None:
    PAID.clear()
    agent = Refunds()
    run = replayed(recording, agent, tmp_path)
    assert run.tools == ["search_orders", "refund", "note"]
    assert run.tool_calls[1].arguments == {"order": "4711", "amount": 19.5}
    assert run.tool_calls[1].result == "paid 19.50 for 4711"
    assert run.files["report.md"] == "Report\nrefunded 4711\n"
    assert list(run.files) == ["report.md"]
    assert run.final == run.output == "Your refund of 19.50 is on its way."
    assert run.models == ["gpt-5"]
    assert run.tokens == 440
    assert Decimal(0) < run.cost < Decimal("0.02")
    assert len(run.steps) == STEPS
    assert run.messages[0].role == "system"
    assert run.divergence is None
    assert run.same_until(8)
    assert (PAID, agent.searches) == ([], 0), "tools were answered from the recording"


def test_the_file_is_reviewable_and_has_nothing_of_this_machine(recording) -> None:
    lines = [json.loads(line) for line in recording.path.read_text().splitlines()]
    assert [each.get("step") for each in lines] == [None, None, *range(1, STEPS + 1)]
    assert list(lines[0])[:3] == ["treering", "version", "name"]
    assert lines[1] == {"file": "report.md", "text": "Report\n"}
    assert lines[2]["reply"].startswith("I look.")
    later = lines[4]
    assert later["after"]["messages"] == [1, 2], "a request continues the one before"
    assert len(later["request"]["body"]["messages"]) == 2
    assert later["request"]["body"]["tools"] == []
    assert lines[7]["files"] == {"report.md": {"text": "Report\nrefunded 4711\n"}}
    text = recording.path.read_text()
    assert str(recording.path.parents[1]) not in text
    assert recording.size == len(text.encode()) < 20_000


def test_a_recording_is_read_as_it_was_written(recording, tmp_path) -> None:
    read = read_test(recording.path)
    again = write_test(read, tmp_path)
    assert again.path is not None
    assert again.path.read_bytes() == recording.path.read_bytes()
    assert [each.request for each in read.steps] == [each.request for each in recording.steps]
    assert list(list_tests(recording.path.parents[1])) == [recording.path]


# Regressions


def test_a_changed_prompt_is_caught_at_the_first_step(recording, tmp_path) -> None:
    agent = Refunds()
    agent.prompt = agent.prompt.replace("Be kind", "Be brief")
    said = diverged(recording, agent, tmp_path)
    assert said.startswith(
        "step 1: the request 'POST /v1/chat/completions' is not what was recorded; "
        "it differs in body.messages.0.content"
    )
    assert '-    "content": "You answer customers. Be kind, and' in said
    assert '+    "content": "You answer customers. Be brief, and' in said


def test_a_changed_schema_of_a_tool_is_caught_at_the_first_step(recording, tmp_path) -> None:
    agent = Refunds()
    agent.amount = int
    said = diverged(recording, agent, tmp_path)
    assert "step 1" in said
    assert "body.tools.1.function.parameters.properties.amount.type" in said
    assert '"integer"' in said


def test_a_changed_model_is_caught(recording, tmp_path) -> None:
    agent = Refunds()
    agent.model = "gpt-5-mini"
    assert "it differs in body.model" in diverged(recording, agent, tmp_path)


def test_a_tool_that_does_something_else_is_caught_where_it_is_real(recording, tmp_path) -> None:
    agent = Refunds()
    agent.noted = "saved: {text}"
    assert replayed(recording, agent, tmp_path).divergence is None, "its answer was recorded"
    for real in (["note"], True):
        said = diverged(recording, agent, tmp_path, real_tools=real)
        assert said.startswith(
            "step 6: the tool call 'note' had another outcome than in the recording; it differs in result"
        )
        assert '- "result": "noted: refunded 4711"' in said
        assert '+ "result": "saved: refunded 4711"' in said
    agent.noted = "{nothing}"
    assert "KeyError" in diverged(recording, agent, tmp_path, real_tools=["note"])


def test_real_tools_work_in_the_folder_and_effects_stay_recorded(recording, tmp_path) -> None:
    PAID.clear()
    agent = Refunds()
    run = replayed(recording, agent, tmp_path, real_tools=True)
    assert run.files["report.md"] == "Report\nrefunded 4711\n"
    assert agent.searches == 1
    assert PAID == [], "a tool that is marked once is never made again"
    with pytest.raises(InvalidInput, match="pay, which 'refund' does not call"):
        replayed(recording, agent, tmp_path, real_tools=["pay"])


def test_another_question_is_caught_and_so_is_an_agent_that_ends_early(recording, tmp_path) -> None:
    assert "step 1" in diverged(
        recording, Refunds(), tmp_path, arguments=["/treering/workspace", QUESTION + " Please."]
    )

    def lazy(folder: str) -> str:
        return f"I did nothing in {folder}."

    said = diverged(recording, lazy, tmp_path)
    assert said == (
        "step 1: the agent ended, and the recording goes on with the request 'POST /v1/chat/completions'"
    )
    assert replayed(recording, lazy, tmp_path, complete=False).tools == []


def test_a_run_that_may_diverge_says_until_where_it_is_the_same(recording, tmp_path) -> None:
    class Hurried(Refunds):
        def ask(self, messages: Any, tools: Any) -> dict[str, Any]:
            if len(messages) > 3:
                messages = [*messages, {"role": "user", "content": "Hurry!"}]
            return super().ask(messages, tools)

    run = replayed(recording, Hurried(), tmp_path, otherwise="stop")
    assert run.same_until(5)
    same = run.same_until(6)
    assert not same
    assert "step 5" in repr(same)
    assert "Hurry!" in repr(same)
    assert run.tools == ["search_orders", "refund"]
    assert run.output is None

    def stub(asked: Any) -> Exchange:
        message = {"role": "assistant", "content": "Stubbed."}
        answer = json.dumps({"choices": [{"message": message}], "usage": {"total_tokens": 1}})
        return Exchange(kind="http", name=asked.name, request=asked.request, answer=answer, status=200)

    stubbed = replayed(recording, Hurried(), tmp_path, otherwise=stub)
    assert stubbed.output == "Stubbed."
    assert not stubbed.same_until(6)


def test_a_replay_of_a_test_connects_to_nothing(recording, tmp_path) -> None:
    def agent(folder: str) -> None:
        with pytest.raises(NetworkBlocked):
            httpx.get("http://example.com")
        Refunds()(folder)

    assert replayed(recording, agent, tmp_path).divergence is None


# Without flakes


def restless(url: str) -> str:
    """An agent that asks with the time, a random number and an id, and several things at once."""

    async def ask(client: httpx.AsyncClient, text: str) -> str:
        await asyncio.sleep(random.random() / 500)
        body = {"model": "gpt-5", "messages": [{"role": "user", "content": text}], "stream": True}
        answer = (await client.post(f"{url}/v1/chat/completions", json=body)).text
        return answer[-40:]

    async def ask_all() -> list[str]:
        head = f"{datetime.now(UTC)} {uuid.uuid4()} {random.random()} {time.time()}"
        async with httpx.AsyncClient(verify=PLAIN) as client:
            return await asyncio.gather(*(ask(client, f"{head} {plan(f'question {at}')}") for at in range(6)))

    return json.dumps(asyncio.run(ask_all()))


def repeat(server: Provider, store: treering.Store, folder: Path, times: int) -> None:
    with treering.record(store, agent="restless", entry=restless, arguments=[server.url]) as run:
        first = restless(server.url)
    test = write_test(record_test(store, run.id, "restless"), folder / "recordings")
    asked = server.count
    for _ in range(times):
        again = replayed(test, restless, folder)
        assert again.output == first
    assert server.count == asked


def test_nothing_flakes(server, store, tmp_path) -> None:
    repeat(server, store, tmp_path, times=3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_nothing_flakes_in_a_hundred_repetitions(server, store, tmp_path, recording) -> None:
    repeat(server, store, tmp_path, times=100)
    for _ in range(100):
        assert replayed(recording, Refunds(), tmp_path, real_tools=True).final.startswith("Your refund")


# What a recording begins with


def secret(length: int) -> str:
    return "".join(random.Random(length).choices(string.ascii_letters + string.digits, k=length))


def test_secrets_are_taken_out_and_the_test_still_passes(store, tmp_path) -> None:
    token, password = f"ghp_{secret(36)}", secret(24)

    def model(messages: Any, _tools: Any) -> Any:
        if messages[-1]["role"] == "tool":
            return f"I have used {messages[-1]['content']}."
        function = {"name": "login", "arguments": json.dumps({"token": token})}
        return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}

    def agent(folder: str) -> str:
        def login(token: str) -> str:
            """Log in."""
            Path(folder, "session").write_text(f"API_KEY={password}\n")
            return f"{token} in {folder}"

        return create_agent(model=model, tools=[login]).generate(prompt=f"Log in with {token}.").text

    work = tmp_path / "work"
    with treering.record(store, workspace=work, entry=agent, arguments=[str(work)]) as run:
        agent(str(work))
    test = write_test(record_test(store, run.id, "login"), tmp_path / "recordings")
    assert test.path is not None
    text = test.path.read_text()
    assert token not in text
    assert password not in text
    assert str(tmp_path) not in text
    assert sorted({*test.secrets}) == ["github-token", "secret"]
    again = replayed(test, agent, tmp_path)
    assert again.output.startswith("I have used <secret: github-token> in ")
    assert again.files["session"] == "API_KEY=<secret: secret>\n"
    assert replayed(test, agent, tmp_path, real_tools=True).files["session"] == f"API_KEY={password}\n"


def test_files_of_any_kind_come_along(store, tmp_path) -> None:
    work = tmp_path / "work"
    (work / "empty").mkdir(parents=True)
    (work / "deep" / "er").mkdir(parents=True)
    (work / "deep" / "er" / "image.bin").write_bytes(bytes(range(256)))
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("run.sh")
    (work / "gone.txt").write_text("soon removed")

    def agent(folder: str) -> str:
        here = Path(folder)
        known = sorted(each.relative_to(here).as_posix() for each in here.rglob("*"))

        def clean() -> str:
            """Remove a file."""
            (here / "gone.txt").unlink()
            return "removed"

        def model(messages: Any, _tools: Any) -> Any:
            if messages[-1]["role"] == "tool":
                return f"{known}"
            call = {"id": "1", "type": "function", "function": {"name": "clean", "arguments": "{}"}}
            return {"role": "assistant", "tool_calls": [call]}

        return create_agent(model=model, tools=[clean]).generate(prompt=f"{known}").text

    with treering.record(store, workspace=work, entry=agent, arguments=[str(work)]) as run:
        first = agent(str(work))
    test = write_test(record_test(store, run.id, "files"), tmp_path / "recordings")
    again = replayed(test, agent, tmp_path)
    assert again.output == first
    here = again.files.folder
    assert (here / "empty").is_dir()
    assert again.files.bytes_of("deep/er/image.bin") == bytes(range(256))
    assert stat.S_IMODE((here / "run.sh").stat().st_mode) == 0o755
    assert (here / "link").readlink() == Path("run.sh")
    assert "gone.txt" not in again.files
    with pytest.raises(KeyError, match=r"nothing\.txt.*among the files: deep/er/image\.bin"):
        again.files["nothing.txt"]


def support(question: str) -> str:
    """An agent with a thread and memory, in the default store."""
    with treering.open() as opened:
        thread = opened.thread("support/alice")
        tone = opened.memory.in_namespace("alice").get("tone")
        known = thread.load().messages
        said = f"{question} ({tone.content if tone else 'no tone'}, {len(known)} before)"
        reply = create_agent(model=lambda messages, _: messages[-1]["content"]).generate(prompt=said)
        thread.append({"role": "user", "content": question}, {"role": "assistant", "content": reply.text})
        return reply.text


def test_the_thread_and_memory_of_then_come_along(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TREERING_URL", str(tmp_path / "store"))
    with treering.open() as store:
        store.thread("support/alice").append({"role": "user", "content": "hello"})
        store.memory.in_namespace("alice").save("tone", "friendly", tags={"style"})
        arguments = ["Where is my refund?"]
        with treering.record(store, thread="support/alice", entry=support, arguments=arguments) as run:
            first = support(*arguments)
        store.memory.in_namespace("alice").save("tone", "angry")
        test = write_test(record_test(store, run.id, "support", memory=["alice"]), tmp_path / "recordings")
        with pytest.raises(NotFound, match="'bob' had no documents"):
            record_test(store, run.id, "support", memory=["bob"])
        before = store.thread("support/alice").head
        again = run_recorded(read_test(test.path), agent=support, folder=tmp_path / "again")  # type: ignore[arg-type]
        with again.store as own:
            assert again.output == first == "Where is my refund? (friendly, 1 before)"
            assert len(own.thread("support/alice").load().messages) == 3
            found = own.memory.in_namespace("alice").get("tone")
            assert found is not None
            assert (found.content, found.tags) == ("friendly", ["style"])
        assert store.thread("support/alice").head == before


# Recording again


def test_recording_again_keeps_what_it_began_with(recording, server, tmp_path) -> None:
    PAID.clear()
    agent = Refunds(server.url)
    agent.prompt = "You answer customers in one sentence."
    test = read_test(recording.path)
    made, run = record_again(test, agent=agent, folder=tmp_path / "again")
    run.store.close()
    written = write_test(made, tmp_path / "recordings")
    assert server.count == 4
    assert run.files["report.md"] == "Report\nrefunded 4711\n"
    assert PAID == [], "the effect was answered from the earlier recording"
    assert made.files == test.files
    assert replayed(written, agent, tmp_path).final == run.final
    assert "body.messages.0.content" in diverged(written, Refunds(), tmp_path)
    other = record_again(test, agent=agent, arguments=[str(tmp_path), plan("Hi.")], folder=tmp_path / "other")
    other[1].store.close()
    assert other[0].final == "Hi."


# What cannot be read or written


def test_what_is_damaged_is_named(recording, tmp_path) -> None:
    text = recording.path.read_text()
    broken = tmp_path / "broken.jsonl"
    with pytest.raises(NotFound, match="treering test add RUN --name broken"):
        read_test(broken)
    for damaged, said in (
        ("", "is no recorded test"),
        ('{"a": 1}\n', "is no recorded test"),
        (text.replace('"version":1', '"version":99'), "upgrade treering"),
        (text[: len(text) // 2], "line .* of .* is no JSON"),
        (text.replace('"after":{"messages":[1,2]', '"after":{"messages":[77,2]'), "is damaged"),
        (text.replace('"kind":"tool",', ""), "is damaged"),
    ):
        broken.write_text(damaged)
        with pytest.raises(InvalidInput, match=said):
            read_test(broken)


def test_a_recording_is_not_overwritten_by_accident(recording, tmp_path) -> None:
    test = read_test(recording.path)
    write_test(test, tmp_path)
    with pytest.raises(Conflict, match="--force"):
        write_test(test, tmp_path)
    write_test(test, tmp_path, replace=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["refund.jsonl"]


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "x" * 101])
def test_a_name_is_that_of_a_file(store, server, name) -> None:
    with treering.record(store) as run:
        httpx.post(f"{server.url}/v1/chat/completions", json={"model": "m", "messages": []})
    with pytest.raises(InvalidInput, match="is invalid"):
        record_test(store, run.id, name)


def test_what_may_differ_is_declared_in_the_recording_or_the_test(store, server, tmp_path) -> None:
    def agent(number: int = 1) -> str:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"It is 2026-11-{number:02}."}],
            "user": f"user {number}",
        }
        return httpx.post(f"{server.url}/v1/chat/completions", json=body).text

    with treering.record(store, entry=agent, draws=False) as run:
        first = agent()
    test = write_test(record_test(store, run.id, "dated", tolerance=Tolerance(mask=("date",))), tmp_path)
    assert "it differs in body.user" in diverged(test, agent, tmp_path, arguments=[2])
    given = Tolerance(ignore=("user",))
    assert replayed(test, agent, tmp_path, arguments=[2], tolerance=given).output == first


def test_a_recording_without_an_entry_says_what_to_pass(store, server, tmp_path) -> None:
    with treering.record(store) as run:
        httpx.post(f"{server.url}/v1/chat/completions", json={"model": "m", "messages": []})
    test = write_test(record_test(store, run.id, "bare"), tmp_path)
    with pytest.raises(NotFound, match="pass agent="):
        replayed(test, None, tmp_path)


# Commands


def test_a_recorded_command_is_a_test_too(server, store, tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "before.txt").write_text("was here")
    run, done = record_command(
        store, command=[sys.executable, "-c", PROGRAM, WORK], workspace=work, upstreams=upstreams(server)
    )
    assert done.exit_code == 0, done.output
    test = write_test(record_test(store, run.id, "command"), tmp_path / "recordings")
    assert test.path is not None
    assert str(tmp_path) not in test.path.read_text()
    asked = server.count
    again = replayed(test, None, tmp_path)
    assert again.final.startswith("Finished in ")
    assert dict(again.files) == {"a.txt": "one", "b.txt": "two", "before.txt": "was here"}
    assert again.output.exit_code == 0
    assert server.count == asked
    command = [sys.executable, "-c", PROGRAM, plan("Something else.")]
    given = {"command": command, "prompt": None, "agent": "program", "model": None}
    assert "step 1" in diverged(test, None, tmp_path, arguments=given)


@pytest.mark.parametrize("framework", frameworks.AGENTS, ids=lambda each: each.__name__)
def test_each_framework_can_be_tested_so(server, store, tmp_path, framework) -> None:
    def agent(model: str = "gpt-5") -> str:
        return framework(server, stream=True, model=model)

    with treering.record(store, entry=agent) as run:
        first = agent()
    test = write_test(record_test(store, run.id, "forecast"), tmp_path / "recordings")
    asked, called = server.count, len(frameworks.CALLS)
    again = replayed(test, agent, tmp_path)
    assert again.output == first
    assert server.count == asked
    assert again.tools == test.tools
    is_caught = framework is not frameworks.gemini  # the test itself calls its tool there
    assert (len(frameworks.CALLS) == called) == is_caught
    assert "model" in diverged(test, agent, tmp_path, arguments=["gpt-5-mini"])
    assert replayed(test, agent, tmp_path, real_tools=True).output == first


@pytest.mark.parametrize("body", [b'{"a": "\xff"}', b"[\xed\xa0\x80]", b'{"a": ', b"\x80"])
def test_a_body_that_is_no_json_is_kept_as_it_is(body):
    """A provider may answer anything, and recording it must not fail the call."""
    kept = decode_body(body, "application/json")
    assert kept == body or kept == body.decode()
