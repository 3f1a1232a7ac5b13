"""Random histories: run an engine side by side with the memory engine, and compare them after each step.

Hypothesis generates commits (valid and invalid ones), forks, replays, staging, sweeps, erasures, reindexing
and reopening; after each step everything readable is compared. A failure shrinks to the shortest history that
shows it. Times differ between two engines and are ignored, and ages are not used (a sweep has either no grace
period or an infinite one).

    @pytest.mark.timeout(600)  # shrinking a failure takes a while
    def test_random_histories(tmp_path):
        run_state_machine_as_test(engine_machine(lambda: MyEngine(tmp_path)))

Every history has its own spaces, so all of them share one store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from treering.core.batch import ABSENT, ANY, Add, Draft, Event, Text, Usage
from treering.core.clock import DAY_US
from treering.core.content import Address, Content, list_address, object_address, slot_address
from treering.core.ids import new_id
from treering.core.query import Erasure, SearchQuery
from treering.engines.memory.engine import MemoryEngine
from treering.errors import TreeringError
from treering.testing import batches
from treering.testing.portrait import portrait, problems, same_receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.batch import Batch, Expect, Receipt
    from treering.core.engine import Engine

_LISTS: Final = [f"list {number}" for number in range(6)]
_REFS: Final = [f"ref/{number}" for number in range(4)]
_COUNTS: Final = ["count/a", "count/b"]
_SCOPES: Final = ["/thread/a", "/thread/b", "/run/c"]
_EVENTS: Final = [f"event-{number}" for number in range(8)]
_WORDS: Final = ["oak", "elm", "fir", "yew"]
_NOWHERE: Final = object_address("0" * 64)
_ENDLESS: Final = 1e9

_FLAWS: Final = ["expect", "at", "missing object", "missing list", "missing slot", "ceiling"]
"""How a commit may be invalid."""

# Few different contents, so that they repeat: tiny, compressible, and large enough for objects.
_large: Final = st.sampled_from([batches.noise(5000, seed=seed) for seed in range(4)])
_contents: Final = st.one_of(
    st.sampled_from([batches.words(f"{one} and {other}") for one in _WORDS for other in _WORDS]),
    st.sampled_from([Content("json", b'{"text":"%s"}' % (word.encode() * 200)) for word in _WORDS]),
    _large,
)


def engine_machine(make_engine: Callable[[], Engine], **options: Any) -> type[RuleBasedStateMachine]:
    """Return a state machine for the engines opened by ``make_engine``, all on the same storage.

    ``options`` go to Hypothesis (`max_examples`, `stateful_step_count`, ...). Use it with
    `hypothesis.stateful.run_state_machine_as_test`.
    """

    class EngineMachine(_Machine):
        def open_engine(self) -> Engine:
            return make_engine()

    chosen: dict[str, Any] = {
        "max_examples": max(25, settings().max_examples // 4),
        "stateful_step_count": 20,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
    }
    EngineMachine.TestCase.settings = settings(**chosen | options)
    return EngineMachine


class _Machine(RuleBasedStateMachine):
    """The engine under test next to the model."""

    steps = 0

    def open_engine(self) -> Engine:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.engine = self.open_engine()
        self.model = MemoryEngine()
        key = new_id()
        self.spaces = [f"{key}-a", f"{key}-b"]
        self.committed: list[Batch] = []
        self.receipts: list[Receipt] = []
        self.erased = False
        for space in self.spaces:
            self._commit(Draft(space, id="first").batch())

    @rule(data=st.data(), count=st.integers(1, 4))
    def commit(self, data: st.DataObject, count: int) -> None:
        space = self._space(data)
        for _ in range(count):
            self.steps += 1
            writer = _Writer(data, self.model, Draft(space, id=f"batch {self.steps}"))
            is_flawed = data.draw(st.integers(0, 5), "flawed") == 5
            self._commit(writer.write(data.draw(st.sampled_from(_FLAWS), "flaw") if is_flawed else ""))
        self._compare(space)

    @precondition(lambda self: self.steps > 0)
    @rule(data=st.data())
    def maintain(self, data: st.DataObject) -> None:
        """All operations except commits in one rule, so that histories are mostly commits."""
        space = self._space(data)
        actions = [self._erase, self._sweep, self._replay, self._stage, self._reindex, self._reopen]
        data.draw(st.sampled_from(actions), "what")(data, space)
        self._compare(space)

    @rule(data=st.data(), text=st.lists(st.sampled_from(_WORDS), min_size=1, max_size=2))
    def look(self, data: st.DataObject, text: list[str]) -> None:
        space = self._space(data)
        self._read(data, space)
        if self.engine.caps.search:
            self._search(data, space, " ".join(text))

    def _space(self, data: st.DataObject) -> str:
        """Choose a space, mostly the first: the second one shows that nothing leaks between them."""
        return self.spaces[data.draw(st.integers(0, 5), "space") == 5]

    def _commit(self, batch: Batch) -> None:
        expected = _outcome(lambda: self.model.commit(batch))
        actual = _outcome(lambda: self.engine.commit(batch))
        if isinstance(expected, type) or isinstance(actual, type):
            _same("commit", actual, expected)
        else:
            assert same_receipt(actual, expected), f"engine: {actual}; model: {expected}"
            self.committed.append(batch)
            self.receipts.append(actual)

    def _replay(self, data: st.DataObject, _space: str) -> None:
        number = data.draw(st.integers(0, len(self.committed) - 1), "which")
        again = self.engine.commit(self.committed[number])
        if self.erased:  # an erasure removes names from receipts
            assert again.first_seq == self.receipts[number].first_seq
        else:
            assert again == self.receipts[number]

    def _stage(self, data: st.DataObject, space: str) -> None:
        contents = data.draw(st.lists(_large, max_size=3), "contents")
        assert self.engine.stage(space, contents) == self.model.stage(space, contents)

    def _sweep(self, data: st.DataObject, space: str) -> None:
        dry_run = data.draw(st.booleans(), "dry run")
        grace_seconds = data.draw(st.sampled_from([0.0, 0.0, _ENDLESS]), "grace")
        expected, actual = (
            msgspec.structs.asdict(engine.sweep(space, dry_run=dry_run, grace_seconds=grace_seconds))
            for engine in (self.model, self.engine)
        )
        for what in ("objects", "bodies", "lists", "kept_objects"):
            _same(f"swept {what}", actual[what], expected[what])

    def _erase(self, data: st.DataObject, space: str) -> None:
        seqs = [record.seq for record in self.model.scan(space, batches.EVERYTHING).records]
        lists = [address[2:] for address in _addresses(self.model, space) if address.startswith("l:")]
        by_scope = data.draw(st.booleans(), "by scope")
        plan = Erasure(
            scopes=_some(data, _SCOPES, "scopes", least=1) if by_scope else (),
            refs=_some(data, _REFS, "refs"),
            lists=_some(data, lists, "lists"),
            event_seqs=_some(data, seqs, "events"),
            cascade=data.draw(st.booleans(), "cascade"),
            secure=data.draw(st.booleans(), "secure"),
        )
        expected = _outcome(lambda: self.model.erase(space, plan))
        actual = _outcome(lambda: self.engine.erase(space, plan))
        if isinstance(expected, type) or isinstance(actual, type):
            _same("erasure", actual, expected)
            return
        self.erased = True
        _same("kept", sorted(actual.kept), sorted(expected.kept))
        for what in ("events", "refs", "lists", "bodies", "texts", "objects"):
            _same(f"erased {what}", getattr(actual, what), getattr(expected, what))

    def _reindex(self, _data: st.DataObject, space: str) -> None:
        self.engine.reindex(space)

    def _reopen(self, _data: st.DataObject, _space: str) -> None:
        if self.engine.caps.durable:
            self.engine.close()
            self.engine = self.open_engine()

    def _read(self, data: st.DataObject, space: str) -> None:
        list_id = data.draw(st.sampled_from(_LISTS), "list")
        start, stop = data.draw(st.integers(0, 12), "start"), data.draw(st.integers(0, 12), "stop")
        expected, actual = (
            _outcome(lambda engine=engine: engine.read_list(space, list_id, start, stop))
            for engine in (self.model, self.engine)
        )
        _same("read_list", actual, expected)
        _same("lineage", self.engine.lineage(space, list_id), self.model.lineage(space, list_id))
        # A scope that is no longer used may be listed until the next sweep.
        missing = set(self.model.scan_scopes(space, "/thread")) - set(
            self.engine.scan_scopes(space, "/thread")
        )
        _same("missing scopes", missing, set())

    def _search(self, data: st.DataObject, space: str, text: str) -> None:
        namespace = data.draw(st.sampled_from([None, "", "n"]), "namespace")
        query = SearchQuery(collection="notes", text=text, namespace=namespace, limit=100)
        expected, actual = (engine.search(space, query) for engine in (self.model, self.engine))
        found, wanted = (sorted((hit.name, hit.source) for hit in each.hits) for each in (actual, expected))
        _same("hits", found, wanted)
        assert actual.indexed_through == expected.indexed_through

    def _compare(self, space: str) -> None:
        expected, actual = (portrait(engine, space, times=False) for engine in (self.model, self.engine))
        if self.erased:
            for contents in (expected, actual):
                contents["commits"] = {
                    batch: (receipt.first_seq, receipt.last_seq)
                    for batch, receipt in contents["commits"].items()
                }
        for what, value in expected.items():
            _same(what, actual[what], value)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            for space in self.spaces:
                self._compare(space)
                assert not problems(self.model, space)
                assert not problems(self.engine, space)
        finally:
            self.engine.close()


class _Writer:
    """Generates a batch that is valid for the model, except for one flaw."""

    def __init__(self, data: st.DataObject, model: MemoryEngine, draft: Draft) -> None:
        self._data = data
        self._model = model
        self._draft = draft
        self._space = draft.space
        self._own: list[Address] = []
        self._stored = _addresses(model, draft.space)

    def write(self, flaw: str) -> Batch:
        draw = self._data.draw
        for content in draw(st.lists(_contents, min_size=1, max_size=3), "contents"):
            self._own.append(self._draft.put(content, scope=self._scope()))
        for list_id in draw(st.lists(st.sampled_from(_LISTS), max_size=3, unique=True), "lists"):
            self._append(list_id)
        for name in draw(st.lists(st.sampled_from(_REFS), max_size=3, unique=True), "refs"):
            self._move(name)
        for name in draw(st.lists(st.sampled_from(_COUNTS), max_size=1), "counts"):
            self._draft.add_to_ref(name, Add(delta=draw(st.integers(-3, 9))), scope=self._scope())
        for _ in range(draw(st.integers(0, 3), "events")):
            self._event()
        for name in draw(st.lists(st.sampled_from(_WORDS), max_size=1), "texts"):
            self._text(name)
        self._spoil(flaw)
        return self._draft.batch()

    def _append(self, list_id: str) -> None:
        draw = self._data.draw
        info = self._model.list_info(self._space, list_id)
        items: list[Content | Address] = [*draw(st.lists(_contents, max_size=2), "items")]
        items += [address for address in self._links() if not address.startswith("l:")]
        if info is not None:
            self._draft.append(list_id, *items, scope=info.scope, at=info.length)
            return
        parents = [each[2:] for each in self._stored if each.startswith("l:")]
        parent_id = draw(st.sampled_from([*parents, None]), "parent")
        parent = self._model.list_info(self._space, parent_id) if parent_id is not None else None
        at = draw(st.integers(0, parent.length), "at") if parent is not None else 0
        self._draft.append(list_id, *items, scope=self._scope(), at=at, parent=parent_id)

    def _move(self, name: str) -> None:
        ref = self._model.refs(self._space, [name]).get(name)
        right: Expect = ABSENT if ref is None else ref.version
        choices: list[Expect] = [ANY, right]
        expect = self._data.draw(st.sampled_from(choices), "expect")
        if self._data.draw(st.integers(0, 3), "delete or set") == 0:
            self._draft.delete_ref(name, scope=self._scope(), expect=expect)
        else:
            value = self._data.draw(st.binary(max_size=4), "value")
            self._draft.set_ref(name, value, scope=self._scope(), expect=expect, links=self._links())

    def _event(self) -> None:
        draw = self._data.draw
        body = [address for address in self._links() if not address.startswith("l:")]
        tokens = draw(st.none() | st.integers(0, 100), "tokens")
        self._draft.event(
            Event(
                id=draw(st.sampled_from(_EVENTS), "event"),
                kind=draw(st.sampled_from(["call", "note"]), "kind"),
                ts_us=batches.NOON_US
                + draw(st.integers(-1, 1), "day") * DAY_US
                + draw(st.integers(0, 3), "us"),
                scope=self._scope(),
                run=draw(st.sampled_from([None, "run-1", "run-2"]), "run"),
                thread=draw(st.sampled_from([None, "t1"]), "thread"),
                usage=None if tokens is None else Usage(input=tokens),
                cost_nanos=draw(st.none() | st.integers(0, 10**6), "cost"),
                status=draw(st.sampled_from([None, "error"]), "status"),
                body=body[0] if body else None,
                links=self._links(),
            )
        )

    def _text(self, name: str) -> None:
        sources = [address for address in self._links() if not address.startswith("l:")]
        self._draft.text(
            Text(
                collection="notes",
                name=name,
                scope=self._scope(),
                source=sources[0] if sources else None,
                namespace=self._data.draw(st.sampled_from(["", "n"]), "namespace"),
            )
        )

    def _spoil(self, flaw: str) -> None:
        match flaw:
            case "expect":
                self._draft.set_ref("never", b"", scope="s", expect=7)
            case "at":
                self._draft.append("never", batches.words("x"), scope="s", at=3)
            case "missing object":
                self._draft.set_ref("never", b"", scope="s", links=(_NOWHERE,))
            case "missing list":
                self._draft.set_ref("never", b"", scope="s", links=(list_address("nowhere"),))
            case "missing slot":
                self._draft.set_ref("never", b"", scope="s", links=(slot_address("nowhere", 0, 0),))
            case "ceiling":
                self._draft.add_to_ref("never", Add(delta=9, ceiling=8), scope="s")
            case _:
                pass

    def _scope(self) -> str:
        return self._data.draw(st.sampled_from(_SCOPES), "scope")

    def _links(self) -> tuple[Address, ...]:
        known = self._own + self._stored
        return tuple(self._data.draw(st.lists(st.sampled_from(known), max_size=2), "links")) if known else ()


def _addresses(model: MemoryEngine, space: str) -> list[Address]:
    """Return every address that a batch may refer to."""
    found: list[Address] = []
    for part in model.export(space):
        found += [object_address(content.name) for content in part.objects]
        found += [
            slot_address(row.batch, row.part, index) for row in part.bodies for index in range(len(row.slots))
        ]
        found += [list_address(row.info.list) for row in part.lists]
    return found


def _outcome(action: Callable[[], Any]) -> Any:
    """Return the result of an action, or the class of its exception."""
    try:
        return action()
    except TreeringError as error:
        return type(error)


def _same(what: str, actual: Any, expected: Any) -> None:
    assert actual == expected, f"{what} differ\n  engine: {actual!r}\n  model:  {expected!r}"


def _some(data: st.DataObject, names: list[Any], what: str, *, least: int = 0) -> tuple[Any, ...]:
    if not names:
        return ()
    return tuple(data.draw(st.lists(st.sampled_from(names), min_size=least, max_size=2, unique=True), what))
