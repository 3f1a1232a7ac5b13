"""Threads against a model: a dict of checkpoints with parents, in which nothing is shared or clever."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import treering
from treering.errors import NotFound

NAMES = ["a", "b", "c"]
WORDS = st.lists(st.sampled_from(["x", "y", "z", 1, True, 1.0]), min_size=1, max_size=3)


@dataclass
class Known:
    """A checkpoint as it should be."""

    thread: str
    parent: str | None
    step: int
    messages: list
    state: dict
    is_tagged: bool = False
    is_there: bool = True


@dataclass
class Model:
    checkpoints: dict[str, Known] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)

    def line(self, name):
        """The ancestors of a head that are left; where a thread left another one, both ends must be."""
        found, at = [], self.heads.get(name)
        while at is not None:
            known = self.checkpoints[at]
            if known.is_there:
                found.append(at)
            near = (self.checkpoints[each].thread for each in (*found[-1:], known.parent) if each is not None)
            if not known.is_there and any(thread != known.thread for thread in near):
                return found
            at = known.parent
        return found

    def of(self, name):
        return [each for each, known in self.checkpoints.items() if known.thread == name and known.is_there]


class Machine(RuleBasedStateMachine):
    """Everything that moves a head, in any order."""

    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory()
        self.store = treering.open(self.url(), durability="fast")
        self.model = Model()
        self.objects = {name: self.store.thread(name) for name in NAMES}

    def url(self):
        return "memory:"

    def teardown(self):
        if hasattr(self, "store"):
            assert self.store.verify().ok
            self.store.close()
            self.folder.cleanup()

    def saved(self, name, checkpoint, messages, state):
        before = self.model.heads.get(name)
        step = 0 if before is None else self.model.checkpoints[before].step + 1
        assert (checkpoint.parent_id, checkpoint.step) == (before, step)
        self.model.checkpoints[checkpoint.id] = Known(name, before, step, messages, state)
        self.model.heads[name] = checkpoint.id

    def copied(self, target, checkpoint):
        known = self.model.checkpoints[target]
        assert checkpoint.step == known.step
        self.model.checkpoints[checkpoint.id] = Known(
            checkpoint.thread_id, target, known.step, known.messages, known.state, is_tagged=known.is_tagged
        )

    def now(self, name):
        head = self.model.heads.get(name)
        return (
            ([], {})
            if head is None
            else (self.model.checkpoints[head].messages, self.model.checkpoints[head].state)
        )

    @rule(name=st.sampled_from(NAMES), words=WORDS, is_tagged=st.booleans())
    def append(self, name, words, is_tagged):
        messages, state = self.now(name)
        checkpoint = self.objects[name].append(*words, tags=["tag"] if is_tagged else [])
        self.saved(name, checkpoint, messages + words, state)
        self.model.checkpoints[checkpoint.id].is_tagged = is_tagged

    @rule(name=st.sampled_from(NAMES), words=WORDS, keep=st.integers(0, 6), count=st.integers(0, 3))
    def checkpoint(self, name, words, keep, count):
        messages = self.now(name)[0][:keep] + words
        state = {"count": count}
        self.saved(name, self.objects[name].checkpoint(list(messages), state), messages, state)

    @precondition(lambda self: self.model.heads)
    @rule(data=st.data(), length=st.integers(0, 5))
    def shorten(self, data, length):
        name = data.draw(st.sampled_from(sorted(self.model.heads)))
        messages, state = self.now(name)
        self.saved(name, self.objects[name].shorten(length), messages[:length], state)

    @precondition(lambda self: self.model.heads)
    @rule(data=st.data())
    def rewind(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.heads)))
        target = data.draw(st.sampled_from(self.model.line(name)))
        checkpoint = self.objects[name].rewind(target)
        if self.model.checkpoints[target].thread == name:
            assert checkpoint.id == target
        else:
            self.copied(target, checkpoint)
        self.model.heads[name] = checkpoint.id

    @precondition(lambda self: self.model.heads)
    @rule(data=st.data())
    def go_back_to_what_was_left_behind(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.heads)))
        own = self.model.of(name)
        if own:
            target = data.draw(st.sampled_from(own))
            self.objects[name].rewind(target)
            self.model.heads[name] = target

    @precondition(lambda self: self.model.heads and len(self.model.heads) < len(NAMES))
    @rule(data=st.data())
    def fork(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.heads)))
        new = next(each for each in NAMES if each not in self.model.heads)
        target = data.draw(st.sampled_from(self.model.line(name)))
        fork = self.store.thread(name).at(target).fork(new)
        checkpoint = fork.head
        self.copied(target, checkpoint)
        self.model.heads[new] = checkpoint.id
        self.objects[new] = fork

    @rule(name=st.sampled_from(NAMES))
    def another_object(self, name):
        self.objects[name] = self.store.thread(name)

    @precondition(lambda self: self.model.heads)
    @rule(last=st.integers(1, 4))
    def trim(self, last):
        self.store.gc(keep=treering.Keep(last=last, tagged=("tag",)), grace_seconds=0)
        pinned = set(self.model.heads.values())
        for name in NAMES:
            for each in self.model.of(name)[:-last]:
                known = self.model.checkpoints[each]
                known.is_there = each in pinned or known.is_tagged

    @invariant()
    def everything_is_as_the_model_has_it(self):
        if not hasattr(self, "model"):
            return
        for name in NAMES:
            thread = self.store.thread(name)
            checkpoint = thread.get()
            if name not in self.model.heads:
                assert checkpoint is None
                continue
            messages, state = self.now(name)
            assert [(type(each), each) for each in checkpoint.messages] == [
                (type(each), each) for each in messages
            ]
            assert checkpoint.state == state
            assert checkpoint.message_count == len(messages)
            assert [each.id for each in thread.history()] == self.model.line(name)
            everything = [each.id for each in thread.history(everything=True)]
            assert everything == self.model.of(name)[::-1]

    @precondition(lambda self: self.model.checkpoints)
    @rule(data=st.data(), last=st.integers(0, 3))
    def look_back(self, data, last):
        which = data.draw(st.sampled_from(sorted(self.model.checkpoints)))
        known = self.model.checkpoints[which]
        thread = self.store.thread(known.thread)
        if not known.is_there:
            with pytest.raises(NotFound):
                thread.at(which)
            return
        checkpoint = thread.at(which)
        assert checkpoint.messages == known.messages
        assert checkpoint.last_messages(last) == (known.messages[-last:] if last else [])
        assert checkpoint.state == known.state


class SqliteMachine(Machine):
    def url(self):
        return self.folder.name


TestInMemory = Machine.TestCase
TestInMemory.settings = settings(max_examples=40, stateful_step_count=25)
TestOnSqlite = SqliteMachine.TestCase
TestOnSqlite.settings = settings(max_examples=8, stateful_step_count=25)
