"""An ordinary commit is accepted from memory, and comes out as one that was decided the long way."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treering.blobs.folder import FolderBlobs
from treering.core.batch import ABSENT, ANY, Add, Draft, Event, Usage
from treering.core.clock import DAY_US, ManualClock, SystemClock
from treering.core.content import Content, object_address, slot_address
from treering.core.query import Erasure, EventQuery, SumQuery
from treering.engines.sql.commit.decide import accept
from treering.engines.sql.commit.encode import encode_batch
from treering.engines.sql.gc import sweep
from treering.engines.sqlite import engine as engine_module
from treering.engines.sqlite import open_sqlite
from treering.errors import InvalidInput, ListMoved, MissingObjects, NotFound, RefMoved, TreeringError

SPACE = "default"
SCOPES = ("/thread/a", "/thread/b")


def opened(folder, clock=None):
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability="fast", clock=clock)


@pytest.fixture
def engine(tmp_path):
    made = opened(tmp_path)
    yield made
    made.close()


@pytest.fixture
def accepted(monkeypatch):
    """Whether each group was accepted from memory, where that was tried."""
    answers = []

    def noted(*given):
        answers.append(accept(*given))
        return answers[-1]

    monkeypatch.setattr(engine_module, "accept", noted)
    return answers


def step(number, *, expect=ANY, at=None, event=None):
    draft = Draft(SPACE)
    draft.append("said", Content("text", b"%d" % number), scope=SCOPES[0], at=number if at is None else at)
    draft.event(Event(id=event or draft.id, kind="step", ts_us=number, scope=SCOPES[0], links=("l:said",)))
    draft.set_ref("head", b"%d" % number, scope=SCOPES[0], expect=expect)
    return draft.batch()


def test_a_step_behind_one_of_ours_is_accepted_from_memory(engine, accepted):
    receipts = [engine.commit(step(number, expect=number or ABSENT)) for number in range(4)]
    assert [each is not None for each in accepted] == [True, True, True]  # the first knew of no commit
    assert [receipt.versions["head"] for receipt in receipts] == [1, 2, 3, 4]
    assert [receipt.first_seq for receipt in receipts] == [1, 2, 3, 4]
    assert [item.data for item in engine.read_list(SPACE, "said", 0, 9)] == [b"0", b"1", b"2", b"3"]
    assert [each.event.ts_us for each in engine.scan(SPACE, EventQuery()).records] == [0, 1, 2, 3]


def test_what_another_process_wrote_is_not_overwritten(engine, accepted, tmp_path):
    engine.commit(step(0))
    other = opened(tmp_path)
    other.commit(step(1))
    other.close()
    with pytest.raises(ListMoved):
        engine.commit(step(1))
    with pytest.raises(RefMoved):
        engine.commit(step(2, expect=1))
    assert accepted[0] is not None  # from memory, which then did not hold
    assert engine.commit(step(2, expect=2)).versions == {"head": 3}


def test_a_repeated_batch_gets_its_first_receipt(engine, accepted):
    engine.commit(step(0))
    batch = step(1)
    first = engine.commit(batch)
    engine.commit(step(2))
    assert engine.commit(batch) == first
    assert len(engine.read_list(SPACE, "said", 0, 9)) == 3
    assert accepted[0] is not None


def test_a_list_grows_in_its_own_scope_only(engine, accepted):
    engine.commit(step(0))
    draft = Draft(SPACE)
    draft.set_ref("other", b"", scope=SCOPES[1])
    engine.commit(draft.batch())
    draft = Draft(SPACE)
    draft.append("said", Content("text", b"1"), scope=SCOPES[1], at=1)
    with pytest.raises(ListMoved, match="another scope"):
        engine.commit(draft.batch())
    assert accepted == [None] * 2


def test_a_ref_takes_its_new_scope_along(engine, accepted):
    for number, scope in enumerate((*SCOPES, *SCOPES)):
        draft = Draft(SPACE)
        draft.set_ref("head", b"%d" % number, scope=scope)
        engine.commit(draft.batch())
        assert engine.refs(SPACE, ["head"])["head"].scope == scope
    assert accepted == [None] * 3


def test_a_repeated_event_is_left_out(engine, accepted):
    engine.commit(step(0, event="e"))
    draft = Draft(SPACE)
    draft.append("said", Content("text", b"1"), scope=SCOPES[0], at=1)
    draft.event(Event(id="e", kind="step", ts_us=0, scope=SCOPES[0]))
    assert engine.commit(draft.batch()).new_events == 0
    assert accepted[-1] is not None
    assert len(engine.scan(SPACE, EventQuery()).records) == 1
    assert len(engine.read_list(SPACE, "said", 0, 9)) == 2


def test_what_an_earlier_commit_brought_may_be_pointed_at_from_memory(engine, accepted):
    def pointing(slot, content):
        draft = Draft(SPACE)
        draft.event(Event(id=draft.id, kind="step", ts_us=1, scope=SCOPES[0], body=slot, links=(content,)))
        return draft.batch()

    draft = Draft(SPACE)
    slot = draft.put(Content("text", b"small"), scope=SCOPES[0])
    content = draft.put(Content("bytes", b"large" * 5000), scope=SCOPES[0])
    draft.event(Event(id=draft.id, kind="step", ts_us=1, scope=SCOPES[0], body=slot, links=(content,)))
    engine.commit(draft.batch())
    for _ in range(2):
        engine.commit(pointing(slot, content))
    engine.erase(SPACE, Erasure(scopes=(SCOPES[0],)))
    engine._sqlite.patience = 0  # the erasure read what had just been written
    with pytest.raises((NotFound, MissingObjects)):
        engine.commit(pointing(slot, content))
    assert [each is not None for each in accepted] == [True, True, False]


@pytest.mark.parametrize("data", [b"small", b"large" * 5000], ids=["slot", "object"])
def test_what_gc_removes_is_not_pointed_at_from_memory(engine, tmp_path, monkeypatch, data):
    """Not even by a process that was still using it while gc was under way."""
    draft = Draft(SPACE)
    address = draft.put(Content("bytes", data), scope=SCOPES[0])
    draft.set_ref("held", b"", scope=SCOPES[0], links=(address,))
    engine.commit(draft.batch())
    engine.commit(step(0))  # the scope stays, so nothing else tells of the removal

    def hold():
        draft = Draft(SPACE)
        draft.set_ref("held", b"", scope=SCOPES[0], links=(address,))
        engine.commit(draft.batch())

    def let_go():
        draft = Draft(SPACE)
        draft.delete_ref("held", scope=SCOPES[0])
        engine.commit(draft.batch())

    slices = itertools.count()

    def meanwhile(name):
        if name == sweep.AFTER_DELETE and next(slices) == 0:  # of lists; bodies and objects come next
            hold()
            let_go()

    let_go()
    gc = opened(tmp_path, ManualClock(SystemClock().now_us() + 400 * DAY_US))
    monkeypatch.setattr(sweep, "hit", meanwhile)
    swept = gc.sweep(SPACE, grace_seconds=3600)
    gc.close()
    assert swept.objects + swept.bodies == 1
    with pytest.raises((NotFound, MissingObjects)):
        hold()


CHANGES = st.sampled_from(("set", "set", "set", "delete", "add", "large"))
EXPECTED = st.sampled_from((ANY, ANY, "right", "right", ABSENT, "wrong"))
REF = st.tuples(st.sampled_from("pq"), CHANGES, EXPECTED)
BATCHES = st.fixed_dictionaries(
    {
        "refs": st.lists(REF, max_size=2, unique_by=lambda ref: ref[0]),
        "lists": st.lists(st.tuples(st.sampled_from("mn"), st.sampled_from((0, 0, 0, 1))), max_size=2),
        "events": st.lists(st.sampled_from(("", "", "", "e")), max_size=2),
        "scope": st.sampled_from(SCOPES + SCOPES[:1]),
        "slot": st.booleans(),
        "object": st.booleans(),
        "links": st.sampled_from(("", "", "", "m", "m", "nowhere", "slot", "slot", "object", "object")),
    }
)


PLAIN = {
    "refs": [("p", "set", ANY)],
    "lists": [("m", 0)],
    "events": [""],
    "scope": SCOPES[0],
    "slot": False,
    "object": False,
    "links": "",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two engines: the first goes the short way where it can, the second never does."""
    short, long = (opened(tmp_path_factory.mktemp(name), ManualClock()) for name in ("short", "long"))
    went = []
    commit = short._shortcut.commit

    def noted(*given):
        receipts = commit(*given)
        went.append(receipts is not None)
        return receipts

    short._shortcut.commit = noted
    long._shortcut.commit = lambda *_: None
    yield short, long
    assert any(went)
    for engine in (short, long):
        engine.close()


SPACES = itertools.count()


@settings(max_examples=60)
@given(st.lists(st.tuples(BATCHES, st.integers(0, 2)), max_size=10))
@example([(PLAIN, 0)] * 5)
@example([(PLAIN, 1), (PLAIN, 2)] * 3)
def test_it_comes_out_as_it_would_the_long_way(pair, plans):
    """Batches alone and in groups of up to three."""
    space = f"s{next(SPACES)}"
    lengths, versions, brought = {}, {}, {}
    group = []
    for number, (plan, others) in enumerate(plans):
        batch = drafted(space, plan, number, lengths, versions, brought)
        with suppress(InvalidInput):  # refused by its form, whichever way it would go
            encode_batch(batch)
            group.append(batch)
        if len(group) <= others and number < len(plans) - 1:
            continue
        mine, theirs = (outcomes(engine, group) for engine in pair)
        assert mine == theirs
        for batch, outcome in zip(group, mine, strict=True):
            if not isinstance(outcome, tuple):
                versions.update(outcome.versions)
                if batch.parts:
                    brought["slot"] = slot_address(batch.id, 0, 0)
                for name in batch.objects:
                    brought["object"] = object_address(name)
                for append in batch.lists:
                    lengths[append.list] = append.at + len(append.items)
        group = []
    assert told(pair[0], space) == told(pair[1], space)


def drafted(space, plan, number, lengths, versions, brought):
    draft = Draft(space, id=f"b{number}")
    scope = plan["scope"]
    links = (brought.get(plan["links"], f"l:{plan['links']}"),) if plan["links"] else ()
    for name, change, expected in plan["refs"]:
        version = versions.get(name, 0)
        expect = {"right": version or ABSENT, "wrong": version + 7}.get(expected, expected)
        if change == "delete":
            draft.delete_ref(name, scope=scope, expect=expect)
        elif change == "add":
            draft.add_to_ref(name, Add(delta=2), scope=scope, expect=expect)
        else:
            value = b"x" * 600 if change == "large" else b"%d" % number
            draft.set_ref(name, value, scope=scope, expect=expect, links=links)
    grown = dict(lengths)
    for name, off in plan["lists"]:
        at = grown.get(name, 0)
        draft.append(name, Content("text", b"%d" % number), scope=scope, at=at + off)
        grown[name] = at + 1
    body = draft.put(Content("text", b"small"), scope=scope) if plan["slot"] else None
    if plan["object"]:
        draft.put(Content("bytes", b"%d" % number * 5000), scope=scope)
    for place, name in enumerate(plan["events"]):
        usage = Usage(input=number) if place else None
        event_id = name or f"{number}.{place}"
        draft.event(Event(id=event_id, kind="k", ts_us=5, scope=scope, body=body, usage=usage, links=links))
    return draft.batch()


def outcomes(engine, group):
    found = engine._write([encode_batch(batch) for batch in group])
    return [(type(each), str(each)) if isinstance(each, TreeringError) else each for each in found]


def told(engine, space):
    lists = {name: engine.lineage(space, name) for name in "mn"}
    return (
        engine.refs(space, ["p", "q"]),
        lists,
        {name: engine.read_list(space, name, 0, 99) for name, line in lists.items() if line},
        engine.scan(space, EventQuery()),
        engine.sums(space, SumQuery(grain="day")),
    )
