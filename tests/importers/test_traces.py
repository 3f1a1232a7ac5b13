"""Traces of Langfuse, Phoenix and OpenTelemetry, from files that their own SDKs and servers wrote.

`make_trace_fixtures` says how each file was made; all of them hold one run of the same agent.
"""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path

import msgspec
import openai
import pytest

import treering
from tests.importers.make_trace_fixtures import support
from tests.mutations import SEED, damaged_bytes, seeds
from treering.core.content import zstd
from treering.errors import NotFound
from treering.importers.registry import importer, load_function
from treering.replays.replay import Diverged, Tolerance
from treering.runs.exchanges import read_exchanges

FIXTURES = Path(__file__).parent / "fixtures/traces"
OPENINFERENCE = Decimal("0.00045")
"""What two calls of gpt-5 cost with 100 tokens in and 10 out; Langfuse's own price was made 0.0003 a call."""
FILES = {
    "openinference.jsonl": ("otlp", OPENINFERENCE),
    "langfuse-sdk.bin": ("otlp", OPENINFERENCE),
    "phoenix.jsonl": ("phoenix", OPENINFERENCE),
    "phoenix-otlp.json": ("phoenix", OPENINFERENCE),
    "phoenix-dataframe.jsonl": ("phoenix", OPENINFERENCE),
    "langfuse.jsonl": ("langfuse", Decimal("0.0006")),
    "langfuse-trace.json": ("langfuse", Decimal("0.0006")),
    "langfuse-api.json": ("langfuse", Decimal("0.0006")),
}


def bring(name: str, source: Path, store: treering.Store, **options):
    return load_function(importer(name).function)(source, store, **options)


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.mark.parametrize("file", FILES)
def test_a_trace_of_another_tool_is_a_run_with_its_messages_tools_tokens_and_cost(file, store):
    name, cost = FILES[file]
    would = bring(name, FIXTURES / file, store, dry_run=True)
    assert (would.new, list(store.runs.each())) == (4, [])
    report = bring(name, FIXTURES / file, store)
    assert (report.new, report.bad, report.runs, report.not_replayable) == (4, (), 1, {})
    (run,) = store.runs.each()
    assert (run.agent, run.thread, run.status) == ("support", "support/alice", "ok")
    assert run.meta["source"] == name
    total = store.cost.of_run(run.id).total
    assert total.amounts == {"USD": cost}
    assert (total.usage.input, total.usage.output) == (200, 20)
    events = store.timeline.of_run(run.id).events
    assert [each.type for each in events] == [
        "agent.span.start",
        "message",
        "tool.call",
        "tool.result",
        "message",
        "agent.span.end",
    ]
    again = bring(name, FIXTURES / file, store)
    assert (again.new, again.files[0].known) == (0, 4)
    assert list(store.verify().problems) == []


@pytest.mark.parametrize("file", FILES)
def test_an_imported_run_is_replayed_without_a_network(file, store):
    name, _ = FILES[file]
    bring(name, FIXTURES / file, store)
    (run,) = store.runs.each()
    # What Langfuse keeps of a request says that it was streamed, not with which options.
    unknown = Tolerance(ignore=("stream_options",)) if "langfuse" in file else Tolerance()
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    with treering.replay(store, run.id, tolerance=unknown) as replayed:
        assert support(client) == "Your refund was sent on Monday."
    assert [each.kind for each in replayed.answered] == ["http", "http"]
    assert [(each.kind, each.name, each.answer) for each in replayed.left] == [
        ("tool", "search_orders", "order 4711 of alice: refunded")
    ]


def test_an_imported_run_diverges_where_the_agent_asks_for_something_else(store):
    bring("phoenix", FIXTURES / "phoenix.jsonl", store)
    (run,) = store.runs.each()
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    with pytest.raises(Diverged) as raised, treering.replay(store, run.id):
        support(client, search=lambda **_: "no order")
    assert any("no order" in line for line in raised.value.divergence.diff)


def test_an_imported_run_is_rerun_from_a_step_on_and_compared(store):
    bring("phoenix", FIXTURES / "phoenix.jsonl", store)
    (run,) = store.runs.each()
    from tests.replays.provider import provider

    with provider() as server:

        def agent() -> None:
            support(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none"))

        made = treering.rerun(store, run.id, from_step=3, model="other-9", entry=agent)
    assert made.reruns[0].status == "ok"
    assert made.reruns[0].final == made.original.final == "Your refund was sent on Monday."
    assert server.count == 1, "the calls before the step were answered from the import"


def test_imported_runs_are_compared_with_each_other(store):
    bring("phoenix", FIXTURES / "phoenix.jsonl", store)
    bring("langfuse", FIXTURES / "langfuse.jsonl", store)
    one, other = store.runs.each()
    compared = store.runs.compare(one.id, other.id)
    assert [each.usage.total for each in compared.runs] == [220, 220]


def test_a_run_whose_instrumentation_kept_no_request_says_why_it_cannot_be_replayed(store, tmp_path):
    rows = [json.loads(line) for line in (FIXTURES / "phoenix.jsonl").read_text().splitlines()]
    for row in rows:
        if row["span_kind"] == "LLM":
            del row["attributes"]["input.value"]
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"data": rows, "next_cursor": None}))
    report = bring("phoenix", path, store)
    (run,) = store.runs.each()
    why = report.not_replayable[run.id]
    assert why == "model call 'ChatCompletion': the instrumentation kept its messages, and not the request"
    assert run.meta["replay"]["missing"] == [why]
    assert [each.type for each in store.timeline.of_run(run.id).events].count("message") == 2
    assert [each.kind for each in read_exchanges(store.engine, store.space, run.id)] == ["tool"]
    with pytest.raises(Diverged, match="not in the recording"), treering.replay(store, run.id):
        support(openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0))


def test_traces_and_observations_of_langfuse_are_joined(store, tmp_path):
    rows = [json.loads(line) for line in (FIXTURES / "langfuse.jsonl").read_text().splitlines()]
    for row in rows:
        for name in ("session_id", "user_id", "tags", "trace_name"):
            del row[name]
    trace = {
        "id": rows[0]["trace_id"],
        "timestamp": rows[-1]["start_time"],
        "name": "support",
        "session_id": "support/bob",
        "user_id": "bob",
    }
    score = {"id": "s1", "trace_id": rows[0]["trace_id"], "name": "good", "value": 1, "data_type": "NUMERIC"}
    for folder, lines in (("observations", rows), ("traces", [trace]), ("scores", [score])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    report = bring("langfuse", tmp_path, store)
    (run,) = store.runs.each()
    assert (run.thread, report.new) == ("support/bob", 4)
    assert report.bad == ("a.jsonl a.jsonl line 1: a score; scores are not imported",)


def test_counts_of_langfuse_do_not_overlap_and_those_of_a_provider_do(store, tmp_path):
    row = json.loads((FIXTURES / "langfuse.jsonl").read_text().splitlines()[0])
    own = {
        "input": 100,
        "input_cached_tokens": 900,
        "output": 30,
        "output_reasoning_tokens": 20,
        "total": 1050,
    }
    old = {**row, "id": "o2", "usage_details": None, "usage": {"input": 7, "output": 2, "total": 9}}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ({**row, "usage_details": own}, old)))
    bring("langfuse", path, store)
    (run,) = store.runs.each()
    usage = store.cost.of_run(run.id).total.usage
    assert (usage.input, usage.cache_read, usage.output, usage.reasoning) == (107, 900, 52, 20)


def test_files_of_the_collector_are_read_in_all_their_forms(tmp_path):
    data = (FIXTURES / "langfuse-sdk.bin").read_bytes()
    messages: list[bytes] = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        messages.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    packed = [zstd.compress(each) for each in messages]
    lines = (FIXTURES / "openinference.jsonl").read_bytes()
    forms = {
        "zstd.bin": b"".join(len(each).to_bytes(4, "big") + each for each in packed),
        "one.pb": messages[0],
        "lines.jsonl.gz": gzip.compress(lines),
        "whole.json": msgspec.json.format(lines.splitlines()[0], indent=2),
        "bom.jsonl": b"\xef\xbb\xbf" + lines,
    }
    expected = {"zstd.bin": 4, "one.pb": None, "lines.jsonl.gz": 4, "whole.json": 1, "bom.jsonl": 4}
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
        with treering.open("memory:") as fresh:
            report = bring("otlp", tmp_path / name, fresh)
        assert not report.bad, name
        assert report.new == expected[name] or (expected[name] is None and report.new), name


def test_a_cut_file_of_protobuf_brings_what_is_whole(store, tmp_path):
    path = tmp_path / "cut.bin"
    path.write_bytes((FIXTURES / "langfuse-sdk.bin").read_bytes() + b"\0\0\1\0short")
    report = bring("otlp", path, store)
    assert report.new == 4
    assert [each.partition(": ")[2] for each in report.bad] == ["it is cut off, or its length is damaged"]


def test_log_records_of_a_file_are_imported_once(store, tmp_path):
    record = {
        "timeUnixNano": "1795122448543613952",
        "body": {"stringValue": "refund sent"},
        "traceId": "1a19a36978f974c4a233e1e613ee1056",
    }
    path = tmp_path / "logs.jsonl"
    path.write_text(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record, {}]}]}]}) + "\n")
    report = bring("otlp", path, store)
    assert report.new == 1
    assert "has no time" in report.bad[0]
    assert bring("otlp", path, store).new == 0


def test_an_import_and_a_live_exporter_write_the_same_run_once(store):
    for line in (FIXTURES / "openinference.jsonl").read_bytes().splitlines():
        store.otlp.write(line, signal="traces", encoding="json")
    report = bring("otlp", FIXTURES / "openinference.jsonl", store)
    assert (report.new, report.files[0].known) == (0, 4)


def test_spans_of_the_same_id_in_traces_whose_ids_begin_and_end_alike_are_all_imported(store, tmp_path):
    rows = [json.loads(line) for line in (FIXTURES / "langfuse.jsonl").read_text().splitlines()]
    path = tmp_path / "alike.jsonl"
    ids = [f"order-2026-{middle}-refund-desk" for middle in "abc"]
    path.write_text("".join(json.dumps(row | {"trace_id": each}) + "\n" for each in ids for row in rows))
    assert bring("langfuse", path, store).new == 12
    calls = {run.id: len(read_exchanges(store.engine, store.space, run.id)) for run in store.runs.each()}
    assert calls == dict.fromkeys(ids, 3)


def test_a_folder_without_exports_is_named(store, tmp_path):
    with pytest.raises(NotFound, match="no exported traces"):
        bring("phoenix", tmp_path, store)


@pytest.mark.parametrize("file", FILES)
def test_the_rest_of_any_damaged_export_is_read(file, tmp_path):
    name, _ = FILES[file]
    whole = (FIXTURES / file).read_bytes()
    for seed in seeds(20):
        chance = random.Random(f"{file} {seed}")
        path = tmp_path / file
        path.write_bytes(damaged_bytes(chance, whole))
        try:
            with treering.open("memory:") as fresh:
                would = bring(name, path, fresh, dry_run=True)
                report = bring(name, path, fresh)
                assert (would.bad, would.new) == (report.bad, report.new)
                assert list(fresh.verify().problems) == []
                assert bring(name, path, fresh).new == 0
        except Exception as error:
            error.add_note(f"{SEED}={seed}")
            raise
