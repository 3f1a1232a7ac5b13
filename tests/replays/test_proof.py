"""Reruns of each framework, and of random agents.

A rerun with the same model ends as the original did; one with another model departs at or after the step from
which it is real, and nowhere before; and the files of the original are what they were, with their times.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import treering
from tests.replays import test_frameworks as frameworks
from tests.replays.provider import PLAIN, Provider, plan
from tests.replays.test_proxy import claude, upstreams
from tests.replays.test_rerun import contents, digest
from treering.agent import create_agent
from treering.replays.proxy import ModelProxy
from treering.replays.replay import Tolerance
from treering.runs.exchanges import Exchange, read_exchanges

SERVERS: dict[str, Provider] = {}
"""Providers by address: what the entries of these tests ask."""


@pytest.fixture(autouse=True)
def _known(server: Provider) -> Iterator[None]:
    SERVERS[server.url] = server
    yield
    SERVERS.clear()
    frameworks.NOTES.clear()
    frameworks.CALLS.clear()


FRAMEWORKS = pytest.mark.parametrize(
    "framework, stream",
    [
        ("openai_chat", False),
        ("openai_chat", True),
        ("mistral", True),
        ("langgraph", False),
        ("langgraph", True),
        ("openai_agents", False),
        ("openai_agents", True),
        ("pydantic_ai", False),  # its run_stream ends with the first text, so there is one turn only
    ],
)


def forecast(url: str, folder: str, framework: str, *, stream: bool) -> str:
    """An agent of a framework, whose tool writes files."""
    frameworks.NOTES[:] = [Path(folder)]
    return getattr(frameworks, framework)(SERVERS[url], stream=stream)


def turn_steps(exchanges: list[Exchange]) -> list[int]:
    """The step of each answer of the model."""
    return [each.step for each in exchanges if each.kind == "http"]


def check_reruns(
    store: Any, run: str, folder: Path, *, steps: list[int], count: int, wants: dict[str, str]
) -> None:
    """Rerun from each of some steps, with the same model and with one that departs at its second turn."""
    exchanges = read_exchanges(store.engine, store.space, run)
    turns = turn_steps(exchanges)
    before = digest(folder)
    for step in steps:
        made = treering.rerun(store, run, from_step=step, model=[None, "other-1"])  # type: ignore[list-item]
        same, other = made.reruns
        assert (same.status, same.departure, same.files) == ("ok", None, ()), (step, same.error)
        assert contents(Path(same.folder or "")) == wants
        assert same.final == made.original.final
        assert other.status == "ok", other.error
        # The other model departs at its second turn, or at the first one after it that is real.
        expected = next((each for each in turns[1:] if each >= step), None)
        assert (other.departure and other.departure.step) == expected, (step, other.departure)
        for each in (same, other):
            kept = read_exchanges(store.engine, store.space, each.run)
            assert [one.step for one in kept if one.is_replayed] == list(range(1, step))
        assert digest(folder) == before
    assert len(exchanges) == count


@FRAMEWORKS
def test_a_framework_departs_where_its_model_does_and_not_before(
    server, store, tmp_path, framework, stream
) -> None:
    folder = tmp_path / "work"
    arguments = {"url": server.url, "folder": str(folder), "framework": framework, "stream": stream}
    with treering.record(store, workspace=folder, entry=forecast, arguments=arguments) as run:
        forecast(**arguments)
    wants = {"Köln.txt": "4 degrees", "Oslo.txt": "4 degrees", "Rome.txt": "4 degrees"}
    assert contents(folder) == wants
    check_reruns(store, run.id, folder, steps=[4], count=6, wants=wants)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@FRAMEWORKS
def test_a_framework_can_be_rerun_from_each_of_its_steps(server, store, tmp_path, framework, stream) -> None:
    folder = tmp_path / "work"
    arguments = {"url": server.url, "folder": str(folder), "framework": framework, "stream": stream}
    with treering.record(store, workspace=folder, entry=forecast, arguments=arguments) as run:
        forecast(**arguments)
    check_reruns(store, run.id, folder, steps=list(range(1, 8)), count=6, wants=contents(folder))


def test_a_langgraph_graph_is_an_entry(server, store, tmp_path) -> None:
    from langchain_anthropic import ChatAnthropic
    from langgraph.graph import START, MessagesState, StateGraph

    make: Any = ChatAnthropic
    chat = make(model="claude-of-the-tests", api_key="sk-ant-secret", base_url=server.url, max_retries=0)

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("one", ask)
    builder.add_node("two", ask)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    graph: Any = builder.compile()
    given = [{"messages": [{"role": "user", "content": plan("First.", "Second.")}]}]
    with treering.record(store, workspace=tmp_path / "work", entry=graph, arguments=given) as run:
        done = graph.invoke(*given)
    made = treering.rerun(store, run.id, from_step=2, model="other-1")
    (one,) = made.reruns
    assert one.status == "ok", one.error
    assert (one.departure and one.departure.step) == 2
    assert made.original.final == done["messages"][-1].content == "Second."
    assert one.final == "Second. But I am another model."


def forecast_with_claude(url: str, home: str) -> str:
    """The Claude Agent SDK with its CLI, whose provider is behind our proxy."""
    with ModelProxy(upstreams=upstreams(SERVERS[url])) as proxy:
        return asyncio.run(claude(proxy, frameworks.CALLS, Path(home)))


@pytest.mark.parametrize(
    "everywhere",
    [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
    ids=["one step", "each step"],
)
def test_the_claude_agent_sdk_departs_where_its_model_does_and_not_before(
    server, store, tmp_path, everywhere
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    arguments = [server.url, str(home)]
    with treering.record(store, entry=forecast_with_claude, arguments=arguments) as run:
        first = forecast_with_claude(*arguments)
    assert first == "success: 4 and 4 degrees."
    exchanges = read_exchanges(store.engine, store.space, run.id)
    turns = [each.step for each in exchanges if each.kind == "http" and each.path.endswith("/messages")]
    tools = [each.step for each in exchanges if each.kind == "tool"]
    assert len(tools) == 2
    second = max(each for each in turns if each < tools[-1])
    called = list(frameworks.CALLS)
    for step in range(1, len(exchanges) + 2) if everywhere else (second,):
        frameworks.CALLS.clear()
        made = treering.rerun(
            store,
            run.id,
            from_step=step,
            model=[None, "other-1"],  # type: ignore[list-item]
            tolerance=Tolerance(ignore=("metadata.user_id",), mask=("uuid", "date")),
        )
        same, other = made.reruns
        assert (same.status, same.departure) == ("ok", None), (step, same.error, same.departure)
        assert other.status == "ok", (step, other.error)
        departs = next((each for each in turns[1:] if each >= step), None)
        assert (other.departure and other.departure.step) == departs, (step, other.departure)
        again = [(city, at) for city, at in zip(called, tools, strict=True) if at >= step]
        # The other model calls no tool in its second turn.
        others = [(city, at) for city, at in again if at < second or step > second]
        assert [city for city, _ in again + others] == frameworks.CALLS, (step, "tools before it were called")


# Random agents


class Program:
    """An agent that is drawn at random: workers at once, their turns and calls, and how they ask."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.stream = draw.random() < 0.5
        self.is_async = draw.random() < 0.5
        self.plans: list[str] = []
        for worker in range(draw.choice((1, 1, 2, 3))):
            turns: list[Any] = []
            for turn in range(draw.randint(1, 4)):
                calls = [self._call(draw, worker, turn, at) for at in range(draw.randint(0, 2))]
                turns.append((self._text(draw), calls or [self._call(draw, worker, turn, 9)]))
            self.plans.append(f"worker {worker}: {plan(*turns, self._text(draw))}")

    @staticmethod
    def _text(draw: random.Random) -> str:
        return "".join(draw.choices('abc äß☀\n"\\{}<>', k=draw.randint(1, 40))).strip() or "x"

    def _call(self, draw: random.Random, worker: int, turn: int, at: int) -> tuple[str, dict[str, Any]]:
        if draw.random() < 0.3:
            return "fail", {"why": self._text(draw)}
        name = f"{worker}-{draw.choice('abc')}.txt"
        return "write", {"name": name, "text": f"{turn} {at} {self._text(draw)}"}


def random_agent(url: str, folder: str, seed: int) -> str:
    program = Program(seed)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: random_worker(url, folder, text, program), program.plans))
    return json.dumps(found)


def random_worker(url: str, folder: str, text: str, program: Program) -> list[Any]:
    def write(name: str, text: str) -> dict[str, Any]:
        """Write a file."""
        (Path(folder) / name).write_text(text)
        return {"name": name, "drawn": random.random() < 2}

    def fail(why: str) -> str:
        """Raise an error."""
        raise ValueError(why)

    def body(messages: Any, tools: Any) -> dict[str, Any]:
        said = [{name: each[name] for name in each if name != "usage"} for each in messages]
        return {"model": "gpt-5", "messages": said, "tools": [each.as_openai() for each in tools], "seed": 1}

    def ask(messages: Any, tools: Any) -> Any:
        asked = {**body(messages, tools), "stream": program.stream}
        if not program.stream:
            said = httpx.post(f"{url}/v1/chat/completions", json=asked, verify=PLAIN).json()
            return said["choices"][0]["message"]
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, verify=PLAIN) as answer:
            return _whole(answer.iter_lines())

    async def ask_async(messages: Any, tools: Any) -> Any:
        async with httpx.AsyncClient(verify=PLAIN) as client:
            answer = await client.post(f"{url}/v1/chat/completions", json=body(messages, tools))
        return answer.json()["choices"][0]["message"]

    agent = create_agent(model=ask_async if program.is_async else ask, tools=[write, fail])
    done = asyncio.run(agent.agenerate(prompt=text)) if program.is_async else agent.generate(prompt=text)
    return [done.text, done.messages]


def _whole(lines: Iterator[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for line in lines:
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for each in choice["delta"].get("tool_calls") or ():
                function = {"name": "", "arguments": ""}
                call = calls.setdefault(each["index"], {"type": "function", "function": function})
                call["id"] = each.get("id") or call["id"]
                for key in ("name", "arguments"):
                    call["function"][key] += each["function"].get(key) or ""
    return message | ({"tool_calls": [calls[at] for at in sorted(calls)]} if calls else {})


def check_random_agents(server: Provider, store: treering.Store, folder: Path, seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(-seed)
        work = folder / f"work-{seed}"
        arguments = [server.url, str(work), seed]
        with treering.record(store, workspace=work, entry=random_agent, arguments=arguments) as run:
            first = random_agent(*arguments)
        exchanges = read_exchanges(store.engine, store.space, run.id)
        files, before, asked = contents(work), digest(work), server.count
        with treering.replay(store, run.id, complete=True):
            assert random_agent(*arguments) == first, f"seed {seed}"
        assert server.count == asked, f"seed {seed}: a replay has asked the provider"
        assert digest(work) == before, f"seed {seed}: a replay has called a tool"
        step = draw.randint(1, len(exchanges) + 1)
        model = draw.choice([None, "other-0", "other-1", "other-2"])
        made = treering.rerun(store, run.id, from_step=step, model=model, folder=folder / "forks")
        (one,) = made.reruns
        assert one.status == "ok", f"seed {seed} from {step}: {one.error}"
        assert digest(work) == before, f"seed {seed}: a rerun has changed the original's files"
        if model is None:
            assert one.departure is None, f"seed {seed} from {step}: {one.departure}"
            assert one.steps == len(exchanges), f"seed {seed} from {step}"
            if len(Program(seed).plans) == 1:
                assert contents(Path(one.folder or "")) == files, f"seed {seed} from {step}"
        elif one.departure is not None:
            assert one.departure.step >= step, f"seed {seed} from {step}: {one.departure}"
        kept = read_exchanges(store.engine, store.space, one.run)
        replayed = sum(each.is_replayed for each in kept)
        assert replayed == step - 1, f"seed {seed} from {step}: {replayed} calls were answered"


def test_random_agents_agree_with_their_recordings(server, store, tmp_path) -> None:
    check_random_agents(server, store, tmp_path, range(8))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_random_agents_agree_with_their_recordings(server, store, tmp_path, part) -> None:
    check_random_agents(server, store, tmp_path, range(100 * part, 100 * part + 100))
