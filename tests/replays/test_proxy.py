"""The proxy for models: programs that are not Python are recorded, replayed and rerun."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import treering
from tests.replays.provider import Provider, plan
from treering.cli.main import main
from treering.replays.commands import record_command
from treering.replays.proxy import ModelProxy
from treering.replays.replay import Diverged, Tolerance
from treering.runs.exchanges import read_exchanges


def upstreams(server: Provider) -> dict[str, str]:
    return {"openai": f"{server.url}/v1", "anthropic": server.url, "google": server.url}


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-5", "messages": [{"role": "user", "content": text}], **more}


PATHS = {
    "/v1/chat/completions": body(plan("chat")),
    "/v1/responses": {"model": "gpt-5", "input": plan("responses")},
    "/v1/messages": body(plan("messages"), max_tokens=10),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_each_format_is_passed_on_and_recorded(server, store, path, stream) -> None:
    asked = {**PATHS[path], **({"stream": True} if stream else {})}
    headers = {"authorization": "Bearer sk-secret", "x-api-key": "secret"}
    with ModelProxy(store, upstreams=upstreams(server)) as proxy:
        first = httpx.post(proxy.url + path, json=asked, headers=headers)
    assert server.asked == [(path, asked)]
    assert server.headers[0]["authorization"] == "Bearer sk-secret"
    (run,) = store.runs.each()
    (kept,) = read_exchanges(store.engine, store.space, run.id)
    assert kept.body == asked
    assert "secret" not in str(kept)
    assert bool(kept.pieces) == stream
    assert store.cost.of_run(run.id).total.usage.input == 100
    with (
        treering.replay(store, run.id, allow=["127.0.0.1"]),
        ModelProxy(upstreams=upstreams(server)) as proxy,
    ):
        again = httpx.post(proxy.url + path, json=asked)
    assert again.content == first.content
    assert server.count == 1


def test_pieces_arrive_as_they_are_sent(server, store) -> None:
    asked = body(plan("word " * 400), stream=True)
    with (
        ModelProxy(store, upstreams=upstreams(server)) as proxy,
        httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=asked) as answer,
    ):
        assert len(list(answer.iter_raw())) > 3
    (run,) = store.runs.each()
    (kept,) = read_exchanges(store.engine, store.space, run.id)
    assert len(kept.pieces) > 3


def test_the_address_names_the_run(server, store) -> None:
    with ModelProxy(store, upstreams=upstreams(server)) as proxy:
        httpx.post(f"{proxy.url}/run/nightly/v1/chat/completions", json=body("a"))
        httpx.post(f"{proxy.url}/run/nightly/v1/chat/completions", json=body("b"))
        httpx.post(f"{proxy.url}/v1/chat/completions", json=body("c"))
        assert httpx.get(f"{proxy.url}/v1/models").status_code == 200
    assert len(read_exchanges(store.engine, store.space, "nightly")) == 2
    assert {each.status for each in store.runs.each()} == {"ok"}


def test_a_provider_that_is_not_there_is_an_answer_and_recorded(store) -> None:
    with ModelProxy(store, upstreams={"openai": "http://127.0.0.1:9/v1"}) as proxy:
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body("x"))
    assert answer.status_code == 502
    assert "127.0.0.1:9" in answer.text
    (run,) = store.runs.each()
    (kept,) = read_exchanges(store.engine, store.space, run.id)
    assert kept.error is not None


PROGRAM = """
import json, os, sys, urllib.request
here = os.getcwd()
notes = "~/.notes/" + here.replace("/", "-").replace("_", "-").replace(".", "-") + "/"
said = [{"role": "system", "content": notes}, {"role": "user", "content": sys.argv[1].replace("HERE", here)}]
while True:
    asked = {"model": "gpt-5", "messages": said, "stream": True, "metadata": {"user_id": os.urandom(8).hex()}}
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    kind = {"content-type": "application/json"}
    request = urllib.request.Request(address, json.dumps(asked).encode(), kind)
    text, calls = "", {}
    for line in urllib.request.urlopen(request):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    kept = calls.setdefault(call["index"], {"id": call.get("id"), "arguments": ""})
                    kept["arguments"] += call["function"]["arguments"]
    said.append({"role": "assistant", "content": text, "calls": [calls[each] for each in sorted(calls)]})
    if not calls:
        break
    for each in calls.values():
        given = json.loads(each["arguments"])
        with open(given["path"], "w") as file:
            file.write(given["text"])
        said.append({"role": "tool", "content": "wrote " + given["path"]})
print(text)
"""
"""A CLI agent that writes files under absolute paths, as Claude Code does."""

WORK = plan(
    ("First.", [("write", {"path": "HERE/a.txt", "text": "one"})]),
    ("Second.", [("write", {"path": "HERE/b.txt", "text": "two"})]),
    "Finished in HERE.",
)


def contents(folder: str | Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in sorted(Path(folder).iterdir())}


def test_a_command_is_recorded_and_run_again_in_another_folder(server, store, tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    run, done = record_command(
        store, command=[sys.executable, "-c", PROGRAM, WORK], workspace=work, upstreams=upstreams(server)
    )
    assert done.exit_code == 0, done.output
    assert done.output.strip() == f"Finished in {work}."
    assert contents(work) == {"a.txt": "one", "b.txt": "two"}
    for each in work.iterdir():
        each.write_text("changed since")
    server.asked.clear()
    made = treering.rerun(store, run.id, from_step=3, folder=tmp_path / "forks")
    (one,) = made.reruns
    assert (one.status, one.departure) == ("ok", None), one.error
    assert server.count == 1
    assert contents(one.folder or "") == {"a.txt": "one", "b.txt": "two"}
    assert contents(work) == {"a.txt": "changed since", "b.txt": "changed since"}
    other = treering.rerun(store, run.id, from_step=2, model="other-1")
    assert other.reruns[0].departure is not None
    assert other.reruns[0].departure.step == 2
    assert contents(other.reruns[0].folder or "") == {"a.txt": "one"}
    whole = treering.rerun(store, run.id, from_step=4)
    assert whole.reruns[0].departure is None
    assert whole.reruns[0].tokens == 0


def test_a_command_that_asks_otherwise_is_stopped_and_sends_nothing(server, store, tmp_path) -> None:
    command = [sys.executable, "-c", PROGRAM, WORK]
    run, _ = record_command(store, command=command, workspace=tmp_path / "w", upstreams=upstreams(server))
    server.asked.clear()
    command[-1] = plan("Something else.")
    given = {"command": command, "prompt": None, "agent": "program", "model": None}
    with pytest.raises(Diverged):
        treering.rerun(store, run.id, from_step=3, arguments=given)
    assert server.count == 0


def test_a_command_gets_its_variables_again_but_no_stored_secret(
    server, store, tmp_path, monkeypatch
) -> None:
    program = f"import os; assert os.environ['MODE'] == 'quiet'; os.environ['DEPLOY_TOKEN']\n{PROGRAM}"
    run, done = record_command(
        store,
        command=[sys.executable, "-c", program, WORK],
        workspace=tmp_path / "work",
        env={"MODE": "quiet", "DEPLOY_TOKEN": "t0p-s3cret"},
        upstreams=upstreams(server),
    )
    assert done.exit_code == 0, done.output
    assert "t0p-s3cret" not in str(store.runs.load(run.id).meta)
    (failed,) = treering.rerun(store, run.id, from_step=2).reruns
    assert (failed.status, failed.departure and failed.departure.what) == ("error", "ended")
    assert "exit code 1: " in (failed.error or "")
    assert "KeyError: 'DEPLOY_TOKEN'" in (failed.error or "")
    monkeypatch.setenv("DEPLOY_TOKEN", "another")
    (one,) = treering.rerun(store, run.id, from_step=2).reruns
    assert (one.status, one.departure) == ("ok", None), one.error


def test_the_command_line_records_and_reruns(server, tmp_path, capfd, monkeypatch) -> None:
    for name, url in upstreams(server).items():
        variable = {"openai": "OPENAI", "anthropic": "ANTHROPIC", "google": "GOOGLE_GEMINI"}[name]
        monkeypatch.setenv(f"{variable}_BASE_URL", url)
    place = ["--store", str(tmp_path / "store")]
    work = ["--record", "--workspace", str(tmp_path / "work")]
    with pytest.raises(SystemExit) as ended:
        main(["run", *place, *work, "--", sys.executable, "-c", PROGRAM, WORK])
    assert ended.value.code == 0
    out, said = capfd.readouterr()
    assert out.strip() == f"Finished in {tmp_path / 'work'}."
    assert "recorded as run" in said
    verify = "test $(cat b.txt) = two"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "rerun",
                "last",
                *place,
                "--from",
                "2",
                "--model",
                "other-1",
                "--model",
                "gpt-5",
                "-n",
                "2",
                "--verify",
                verify,
                "--json",
            ]
        )
    made = json.loads(capfd.readouterr().out)
    assert ended.value.code in (0, None)
    assert made["original"]["verify"]["exit_code"] == 0
    assert [each["verify"]["exit_code"] == 0 for each in made["reruns"]] == [False, False, True, True]
    assert [each["first_departure"] for each in made["variants"]] == [2, None]
    with pytest.raises(SystemExit):
        main(["reruns", made["run"], *place])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == "RUN VARIANT STATUS DEPARTS MESSAGES FILES VERIFY TOKENS COST TIME".split()
    assert sum("step 2" in line for line in lines[1:6]) == 2
    assert any("±" in line for line in lines)
    with pytest.raises(SystemExit) as ended:
        main(["rerun", made["run"], *place, "--prompt-file", str(tmp_path / "nowhere.txt")])
    assert ended.value.code == 2
    assert "nowhere.txt cannot be read: No such file" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["rerun", made["run"], *place, "--from", "2"])
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main(["reruns", made["run"], *place, "--group", made["group"], "--limit", "1", "--json"])
    shown, note = capfd.readouterr()
    assert json.loads(shown) == made | {"reruns": made["reruns"][:1]}
    assert "only 1 are shown" in note
    with pytest.raises(SystemExit):
        main(["reruns", made["run"], *place])
    assert capfd.readouterr().out.splitlines()[-1].endswith(f"(--group): {made['group']}")


# The Claude Agent SDK, with the CLI that comes with it


async def claude(proxy: ModelProxy, calls: list[str], home: Path) -> str:
    from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

    @tool("weather", "The temperature in a city", {"city": str})
    async def weather(arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(arguments["city"])
        return {"content": [{"type": "text", "text": f"{len(arguments['city'])} degrees"}]}

    options = ClaudeAgentOptions(
        model="claude-sonnet-4-5",
        system_prompt="You are a forecaster.",
        mcp_servers={"sky": create_sdk_mcp_server("sky", tools=[weather])},
        allowed_tools=["mcp__sky__weather"],
        tools=[],
        cwd=home,
        env={
            **proxy.environment(),
            "HOME": str(home),
            "ANTHROPIC_API_KEY": "sk-ant-secret",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        setting_sources=[],
    )
    prompt = plan(
        ("I look.", [("mcp__sky__weather", {"city": "Rome"})]),
        ("And again.", [("mcp__sky__weather", {"city": "Oslo"})]),
        "4 and 4 degrees.",
    )
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, ResultMessage):
            return f"{message.subtype}: {message.result}"
    return "nothing"


def test_the_claude_agent_sdk_is_recorded_and_replayed_without_its_provider(server, store, tmp_path) -> None:
    calls: list[str] = []
    (tmp_path / "home").mkdir()
    with (
        treering.record(store, agent="forecaster") as run,
        ModelProxy(upstreams=upstreams(server)) as proxy,
    ):
        first = asyncio.run(claude(proxy, calls, tmp_path / "home"))
    assert first == "success: 4 and 4 degrees."
    assert calls == ["Rome", "Oslo"]
    kinds = [each.kind for each in read_exchanges(store.engine, store.space, run.id)]
    assert kinds.count("tool") == 2
    asked = server.count
    tolerance = Tolerance(ignore=("metadata.user_id",), mask=("uuid", "date"))
    with (
        treering.replay(store, run.id, tolerance=tolerance, allow=["127.0.0.1"]) as replayed,
        ModelProxy(upstreams=upstreams(server)) as proxy,
    ):
        again = asyncio.run(claude(proxy, calls, tmp_path / "home"))
    assert replayed.divergence is None
    assert again == first
    assert calls == ["Rome", "Oslo"], "the tools were answered from the recording"
    assert server.count == asked
