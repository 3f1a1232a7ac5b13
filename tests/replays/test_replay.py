"""Recording and replaying single calls: matching, divergence, the blocked network, and what is stored."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import httpx2
import pytest

import treering
from tests.replays.provider import plan
from treering.agent import create_agent
from treering.core.query import EventQuery, each_record
from treering.replays.replay import Diverged, NetworkBlocked, Tolerance
from treering.runs.exchanges import Exchange, read_exchanges


def chat(server, *texts: str, model: str = "gpt-5", client: Any = httpx, **more) -> str:
    messages = [{"role": "user", "content": text} for text in texts]
    done = client.post(
        f"{server.url}/v1/chat/completions",
        json={"model": model, "messages": messages, **more},
        headers={"authorization": "Bearer sk-secret"},
    )
    return done.text


def exchanges_of(store, run) -> list[Exchange]:
    store.flush()
    return read_exchanges(store.engine, store.space, run.id)


@pytest.mark.parametrize("client", [httpx, httpx2])
def test_both_clients_are_recorded_and_replayed(server, store, client) -> None:
    with treering.record(store) as run:
        first = chat(server, "hello", client=client)
    with treering.replay(store, run.id):
        assert chat(server, "hello", client=client) == first
    assert server.count == 1


def test_calls_are_matched_by_content_in_any_order(server, store) -> None:
    texts = [f"question {number}" for number in range(20)]
    with treering.record(store) as run, ThreadPoolExecutor(8) as pool:
        first = dict(zip(texts, pool.map(lambda text: chat(server, text), texts), strict=True))
    with treering.replay(store, run.id, complete=True), ThreadPoolExecutor(8) as pool:
        again = dict(
            zip(reversed(texts), pool.map(lambda text: chat(server, text), reversed(texts)), strict=True)
        )
    assert again == first
    assert server.count == 20


def test_the_same_call_made_twice_gets_both_answers_in_order_and_no_third(server, store) -> None:
    with treering.record(store) as run:
        first = [chat(server, "again"), chat(server, "again")]
    assert first[0] != first[1]

    def ask() -> None:
        with treering.replay(store, run.id):
            assert [chat(server, "again"), chat(server, "again")] == first
            chat(server, "again")

    with pytest.raises(Diverged) as raised:
        ask()
    assert raised.value.divergence.recorded is None
    assert raised.value.divergence.step == 3


def test_a_divergence_shows_what_was_asked_beside_what_was_recorded(server, store) -> None:
    with treering.record(store) as run:
        chat(server, "one")
        chat(server, "two")

    def ask() -> None:
        with treering.replay(store, run.id):
            chat(server, "one")
            chat(server, "three")

    with pytest.raises(Diverged) as raised:
        ask()
    found = raised.value.divergence
    assert found.step == 2
    assert found.asked["body"]["messages"] == [{"role": "user", "content": "three"}]
    assert any(line.startswith("-") and "two" in line for line in found.diff)
    assert any(line.startswith("+") and "three" in line for line in found.diff)
    assert server.count == 2, "nothing was sent"


def test_an_agent_cannot_swallow_a_divergence(server, store) -> None:
    with treering.record(store) as run:
        chat(server, "one")

    def swallow() -> None:
        try:
            chat(server, "other")
        except Exception:  # noqa: BLE001 - as SDKs do before they try again
            return

    with pytest.raises(Diverged), treering.replay(store, run.id):
        swallow()


def test_what_was_not_asked_for_is_a_divergence_of_a_complete_replay(server, store) -> None:
    with treering.record(store) as run:
        chat(server, "one")
        chat(server, "two")
    with treering.replay(store, run.id) as replayed:
        chat(server, "one")
    assert [each.step for each in replayed.left] == [2]
    with pytest.raises(Diverged, match="step 2"), treering.replay(store, run.id, complete=True):
        chat(server, "one")


def test_unknown_calls_can_be_made_for_real_or_answered_by_a_function(server, store) -> None:
    with treering.record(store) as run:
        chat(server, "one")
    with treering.replay(store, run.id, otherwise="real") as replayed:
        chat(server, "one")
        chat(server, "two")
    assert server.count == 2
    assert replayed.divergence is not None
    assert replayed.divergence.asked["body"]["messages"][0]["content"] == "two"

    def stub(asked) -> Exchange:
        return Exchange(kind="http", name=asked.name, request=asked.request, answer="stub", status=200)

    with treering.replay(store, run.id, otherwise=stub):
        assert chat(server, "three") == "stub"
    assert server.count == 2


def test_declared_differences_are_tolerated_and_others_are_not(server, store) -> None:
    when = "It is 2026-11-19T10:00:00Z, request 6f1c1f6e-0000-4000-8000-000000000001."
    later = "It is 2027-01-01T23:59:59Z, request 6f1c1f6e-0000-4000-8000-00000000ffff."
    with treering.record(store) as run:
        first = chat(server, when, metadata={"user_id": "a", "plan": "x"})
    tolerance = Tolerance(ignore=("metadata.user_id",), mask=("timestamp", "uuid"))
    with treering.replay(store, run.id, tolerance=tolerance):
        assert chat(server, later, metadata={"user_id": "b", "plan": "x"}) == first
    with pytest.raises(Diverged), treering.replay(store, run.id, tolerance=tolerance):
        chat(server, later, metadata={"user_id": "b", "plan": "y"})
    with pytest.raises(Diverged), treering.replay(store, run.id):
        chat(server, later, metadata={"user_id": "a", "plan": "x"})


def test_a_replay_connects_to_nothing_else(server, store) -> None:
    with treering.record(store) as run:
        chat(server, "one")
    port = int(server.url.rpartition(":")[2])
    with treering.replay(store, run.id):
        with pytest.raises(NetworkBlocked, match=f"127.0.0.1:{port}"):
            socket.create_connection(("127.0.0.1", port))
        with pytest.raises(NetworkBlocked):
            httpx.get(f"{server.url}/v1/models")
        with pytest.raises(NetworkBlocked):
            socket.getaddrinfo("example.com", 443)
    with treering.replay(store, run.id, allow=[f"127.0.0.1:{port}"]):
        socket.create_connection(("127.0.0.1", port)).close()
    socket.create_connection(("127.0.0.1", port)).close()


def test_an_open_connection_is_not_used_either(server, store) -> None:
    with httpx.Client() as client:
        with treering.record(store) as run:
            chat(server, "one", client=client)
        with treering.replay(store, run.id):
            assert chat(server, "one", client=client)
            with pytest.raises(NetworkBlocked):
                client.get(f"{server.url}/v1/models")


def test_refusals_and_lost_connections_are_replayed_too(server, store) -> None:
    server.fails += [500, 429]
    with treering.record(store) as run:
        first = [httpx.post(f"{server.url}/v1/chat/completions", json=_body("x")) for _ in range(3)]
        with pytest.raises(httpx.ConnectError) as lost:
            httpx.post("http://127.0.0.1:9/v1/messages", json=_body("x"))
    assert [each.status_code for each in first] == [500, 429, 200]
    with treering.replay(store, run.id, complete=True):
        again = [httpx.post(f"{server.url}/v1/chat/completions", json=_body("x")) for _ in range(3)]
        with pytest.raises(httpx.ConnectError) as lost_again:
            httpx.post("http://127.0.0.1:9/v1/messages", json=_body("x"))
    assert [(each.status_code, each.content) for each in again] == [
        (each.status_code, each.content) for each in first
    ]
    assert str(lost_again.value) == str(lost.value)


def _body(text: str) -> dict:
    return {"model": "gpt-5", "messages": [{"role": "user", "content": text}]}


def test_a_long_conversation_is_stored_once_however_often_it_is_sent(server, store) -> None:
    system = "Be brief. " * 200
    with treering.record(store) as run:
        for number in range(1, 41):
            chat(server, system, *(f"message {each} " + "x" * 500 for each in range(number)), "end" * number)
    sent = sum(len(json.dumps(body)) for _, body in server.asked)
    kept = exchanges_of(store, run)
    assert [each.body for each in kept] == [body for _, body in server.asked]
    infos = [store.engine.list_info(store.space, name) for name in _lists_of(store, run)]
    items = sum(info.length - info.start for info in infos)
    assert items < 40 * 41 / 8, f"{items} items, of {sum(range(40)) + 80} sent in {sent} bytes"


def _lists_of(store, run) -> set[str]:
    query = EventQuery(run=run.id, kinds=("exchange.http",))
    rows = each_record(store.engine, store.space, query)
    return {link[2:] for row in rows for link in row.event.links if link.startswith("l:")}


def test_no_credential_is_stored(server, store) -> None:
    with treering.record(store) as run:
        httpx.post(
            f"{server.url.replace('//', '//u:a-secret@')}/v1/models/g:generateContent?key=g-secret&alt=sse",
            json={"contents": []},
            headers={"x-goog-api-key": "secret", "cookie": "a=secret", "anthropic-version": "1"},
        )
    (kept,) = exchanges_of(store, run)
    assert "secret" not in str(kept)
    assert kept.request["url"].endswith("generateContent?alt=sse")
    assert kept.request["headers"]["anthropic-version"] == "1"
    assert "set-cookie" not in kept.headers


def stream(server, text: str) -> Any:
    body = {**_body(plan(text)), "stream": True}
    return httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body)


def test_a_stream_keeps_the_time_of_each_piece(server, store) -> None:
    with treering.record(store) as run, stream(server, "é" * 3000) as done:
        pieces = list(done.iter_raw())
    (kept,) = exchanges_of(store, run)
    assert [each.length for each in kept.pieces] == [len(each) for each in pieces]
    offsets = [each.offset_us for each in kept.pieces]
    assert offsets == sorted(offsets)
    with treering.replay(store, run.id), stream(server, "é" * 3000) as done:
        assert list(done.iter_raw()) == pieces


def test_a_stream_that_was_left_early_is_replayed_as_far_as_it_was_read(server, store) -> None:
    with treering.record(store) as run, stream(server, "x" * 9000) as done:
        first = next(iter(done.iter_raw()))
    (kept,) = exchanges_of(store, run)
    assert kept.is_cut
    with treering.replay(store, run.id), stream(server, "x" * 9000) as done:
        assert next(iter(done.iter_raw())) == first


def test_async_calls_at_once(server, store) -> None:
    async def ask(client, text: str) -> str:
        return (await client.post(f"{server.url}/v1/chat/completions", json=_body(text))).text

    async def ask_all() -> list[str]:
        async with httpx.AsyncClient() as client:
            return await asyncio.gather(*(ask(client, f"question {number}") for number in range(10)))

    async def record_and_replay() -> None:
        async with treering.record(store) as run:
            first = await ask_all()
        async with treering.replay(store, run.id, complete=True):
            assert await ask_all() == first

    asyncio.run(record_and_replay())
    assert server.count == 10


def test_instrument_makes_a_run_of_each_call_outside_of_any(server, store) -> None:
    with treering.instrument(store):
        chat(server, "one")
        with store.run(agent="mine") as run:
            chat(server, "two")
    chat(server, "three")
    store.flush()
    runs = {info.agent: info for info in store.runs.each()}
    assert set(runs) == {"openai", "mine"}
    assert [each.body["messages"][0]["content"] for each in exchanges_of(store, run)] == ["two"]
    total = store.cost.of_run(runs["openai"].id).total
    assert (total.usage.input, total.usage.output) == (100, 10)
    assert total.amount("USD") > 0
    labels = [event.type for event in store.timeline.of_run(run.id).events]
    assert "message" in labels


def test_tools_of_a_store_are_answered_with_their_values_and_errors(store) -> None:
    made: list[int] = []

    @store.tool
    def divide(a: int, b: int) -> dict:
        made.append(b)
        return {"quotient": a / b, "pair": [a, b]}

    def work() -> list:
        found = [divide(6, 3), divide(8, b=2)]
        with pytest.raises(ZeroDivisionError) as raised:
            divide(1, 0)
        return [*found, str(raised.value)]

    with treering.record(store) as run:
        first = work()
    with treering.replay(store, run.id, complete=True):
        assert work() == first
    assert made == [3, 2, 0]
    with treering.replay(store, run.id, tools=False):
        assert work() == first
    assert made == [3, 2, 0, 3, 2, 0]


def test_a_refused_batch_costs_only_the_exchange_that_is_bad(server, store, monkeypatch) -> None:
    commit, refused = store.engine.commit, []

    def refuse(batch):
        if any(each.name == "POST /v1/chat/completions" for each in batch.events) and len(refused) < 2:
            refused.append(batch)
            raise treering.errors.InvalidInput("refused by the test")
        return commit(batch)

    monkeypatch.setattr(store.engine, "commit", refuse)
    with store.run() as run, treering.instrument(store, spans=False):
        for number in range(4):
            chat(server, *(f"message {each}" for each in range(number + 1)))
            with suppress(treering.errors.InvalidInput):
                store.flush()
    assert len(refused) == 2
    kept = exchanges_of(store, run)
    assert [each.body for each in kept] == [body for _, body in server.asked[-len(kept) :]]
    assert len(kept) >= 2


def test_a_model_that_is_a_function_is_recorded_by_our_loop(store) -> None:
    asked: list[int] = []

    def model(messages, _tools):
        asked.append(len(messages))
        yield "It is "
        yield f"{len(asked)}."

    def answer() -> str:
        return create_agent(model=model).generate(prompt="How much?").text

    with treering.record(store) as run:
        first = answer()
    with treering.replay(store, run.id, complete=True):
        assert answer() == first == "It is 1."
    assert asked == [1]


def test_one_replay_at_a_time_runs_in_a_process(server, store) -> None:
    with treering.record(store) as run:
        chat(server, "one")
    with treering.replay(store, run.id):
        with pytest.raises(treering.errors.Conflict, match="another replay"):
            treering.replay(store, run.id).start()
        chat(server, "one")


def test_a_run_without_recorded_calls_says_how_to_record(store) -> None:
    with store.run() as run:
        pass
    with pytest.raises(treering.errors.NotFound, match="record"):
        treering.replay(store, run.id)


def test_replayed_tokens_are_not_counted_again(server, store) -> None:
    with treering.record(store) as run:
        chat(server, "one")
    with treering.replay(store, run.id), store.run("again") as again:
        chat(server, "one")
    store.flush()
    assert store.cost.of_run(run.id).total.usage.input == 100
    assert store.cost.of_run(again.id).total.usage.input == 0
    assert [each.is_replayed for each in exchanges_of(store, again)] == [True]
