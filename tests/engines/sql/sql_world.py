"""Made-up histories for the tests of sweep, erase and check: the same ones for any engine."""

from __future__ import annotations

import random

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft, Event, Text, Usage
from treering.core.content import Content, list_address, object_address, slot_address
from treering.core.tree import FileEntry, FolderEntry, Tree, encode_tree
from treering.engines.sql import rollups, verify
from treering.engines.sql.gc import erase, mark, sweep
from treering.engines.sqlite import open_sqlite
from treering.testing import batches

SPACE = "space"
SCOPES = [f"/thread/{name}" for name in "abcd"]
TREES = "/workspace/w"

_MODULES = (verify, verify, erase, erase, mark, erase, rollups, sweep, sweep, mark)
_SIZES = {"PAGE": 3, "COMMITS": 2, "PAGE_BYTES": 5000, "SLICE": 2, "_TREES": 2, "_LISTS": 2}


def open_store(folder, clock=None):
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability="fast", clock=clock)


STORES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


def open_either(request, folder):
    """A store of the kind that a fixture's parameter names: the statements are the same for both."""
    if request.param == "sqlite":
        return open_store(folder)
    from treering.engines.postgres import open_postgres

    return open_postgres(request.getfixturevalue("postgres_url"), blobs=FolderBlobs(folder / "blobs"))


def use_tiny_pages(monkeypatch):
    """Let a handful of rows need as many pages and slices as a million would."""
    for module in _MODULES:
        for name, size in _SIZES.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)


class History:
    """Commits that make up something of everything, deterministic for a seed, told to several engines."""

    def __init__(self, seed, *engines):
        self.random = random.Random(seed)
        self.engines = engines
        self.steps = 0
        self.known = []
        self.lists = {}

    def go_on(self, steps):
        for _ in range(steps):
            self.steps += 1
            self._commit()

    def addresses(self):
        """What a batch may point at and what is still there."""
        stored = set()
        for part in self.engines[0].export(SPACE):
            # A folder that was let go may have lost an entry to an erasure; only new ones are linked.
            stored.update(object_address(content.name) for content in part.objects if content.kind != "tree")
            stored.update(
                slot_address(row.batch, row.part, index)
                for row in part.bodies
                for index, content in enumerate(row.slots)
                if content.kind != "tree"
            )
            stored.update(list_address(row.info.list) for row in part.lists)
        self.lists = {row.info.list: row.info for part in self.engines[0].export(SPACE) for row in part.lists}
        return sorted(stored)

    def _commit(self):
        choose = self.random
        draft = Draft(SPACE, id=f"batch {self.steps}")
        stored = self.addresses() if self.steps > 1 else []
        own = [draft.put(self._content(), scope=self._scope()) for _ in range(choose.randrange(3))]
        if choose.random() < 0.3:
            own.append(self._tree(draft, stored))
        pool = own + stored

        def some(*, content=False):
            usable = [each for each in pool if not (content and each.startswith("l:"))]
            return tuple(choose.sample(usable, min(len(usable), choose.randrange(3))))

        if choose.random() < 0.6:
            self._append(draft, some(content=True))
        for _ in range(choose.randrange(3)):
            body = some(content=True)
            draft.event(
                Event(
                    id=f"event {choose.randrange(10_000)}",
                    kind=choose.choice(["call", "note"]),
                    ts_us=batches.NOON_US + choose.randrange(3),
                    scope=self._scope(),
                    run=choose.choice([None, "run"]),
                    thread=choose.choice([None, "thread"]),
                    usage=choose.choice([None, Usage(input=3, output=4)]),
                    cost_nanos=choose.choice([None, 5]),
                    body=body[0] if body else None,
                    links=some(),
                )
            )
        number = choose.randrange(6)
        name, scope = f"ref {number}", SCOPES[number % len(SCOPES)]
        if choose.random() < 0.3:
            draft.delete_ref(name, scope=scope)
        elif choose.random() < 0.7:
            draft.set_ref(name, b"value", scope=scope, links=some())
        if choose.random() < 0.2 and (source := some(content=True)):
            draft.text(
                Text(collection="notes", name=f"{choose.randrange(3)}", scope=self._scope(), source=source[0])
            )
        for engine in self.engines:
            engine.commit(draft.batch())

    def _append(self, draft, addresses):
        choose = self.random
        list_id = f"list {choose.randrange(8)}"
        items = [self._content() for _ in range(choose.randrange(3))] + list(addresses)
        info = self.lists.get(list_id)
        if info is not None:
            draft.append(list_id, *items, scope=info.scope, at=info.length)
        elif self.lists and choose.random() < 0.6:
            parent = self.lists[choose.choice(sorted(self.lists))]
            at = choose.randrange(parent.length + 1)
            draft.append(list_id, *items, scope=self._scope(), at=at, parent=parent.list)
        else:
            draft.append(list_id, *items, scope=self._scope(), at=0)

    def _tree(self, draft, stored):
        """A tree of stored objects; sometimes one inside another, sometimes large enough to be an object."""
        choose = self.random
        files = [address[2:] for address in stored if address.startswith("o:")]
        entries = [
            FileEntry(name=f"file {number}", mode=0o644, size=1, content=(name,))
            for number, name in enumerate(choose.sample(files, min(len(files), 3)))
        ]
        inner = encode_tree(Tree(entries=tuple(entries)))
        for engine in self.engines:
            engine.stage(SPACE, [inner])
        filler = [FileEntry(name=f"pad {number:03}", mode=0o644, size=0, content=()) for number in range(400)]
        folder = FolderEntry(name="inner", mode=0o755, tree=inner.name)
        outer = encode_tree(Tree(entries=(folder, *choose.choice([[], filler]))))
        draft.require(inner.name)
        # In a body of its own: the model follows single slots, while a store keeps all that a body leads to.
        return draft.put(outer, scope=TREES)

    def _content(self):
        choose = self.random
        word = choose.choice(["oak", "elm", "fir"])
        return choose.choice(
            [
                Content("text", word.encode()),
                Content("json", b'{"w":"%s"}' % word.encode()),
                batches.noise(4200, seed=choose.randrange(6)),
            ]
        )

    def _scope(self):
        return self.random.choice(SCOPES)
