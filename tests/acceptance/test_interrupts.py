"""agent-sdk: interrupts are saved, answered once and only for what was asked; forks keep them."""

from __future__ import annotations

import pytest

import treering
from tests.compat.savers.savers_under_test import EACH, kinds, place
from treering.compat.savers import FileSaver, MemorySaver
from treering.errors import Conflict, InvalidInput, NotFound

ASKED = {"tool": "delete_file", "input": {"path": "notes.md"}}


@pytest.fixture(params=kinds(EACH))
def anywhere(request):
    made = place(request.param, request)
    yield made
    made.close()


def waiting(saver, thread_id="t"):
    saver.save(
        thread_id=thread_id,
        messages=[{"role": "user", "content": "delete my notes"}],
        state={"todos": ["delete"], "files": {"notes.md": "text"}},
        metadata={"user": "alice"},
    )
    return saver.interrupt(thread_id, ASKED)


def test_a_pending_interrupt_is_saved_with_the_conversation(anywhere):
    pending = waiting(anywhere.open()).pending_interrupt
    loaded = anywhere.open().load("t")
    assert loaded.pending_interrupt == pending == {"id": pending["id"], "payload": ASKED}
    assert loaded.messages == [{"role": "user", "content": "delete my notes"}]
    assert loaded.state["files"] == {"notes.md": "text"}


@pytest.mark.parametrize("decision", ["approve", "deny", "edit"])
def test_each_decision_is_kept_with_what_it_was_about(decision, request):
    for kind in ("memory", "dict"):
        saver = place(kind, request).open()
        pending = waiting(saver).pending_interrupt
        new = {"tool": "archive_file"} if decision == "edit" else None
        resumed = saver.resume("t", decision, interrupt_id=pending["id"], value=new)
        answer = {"id": pending["id"], "decision": decision, "payload": new or ASKED}
        assert resumed.metadata["resumed"] == answer
        assert saver.load("t").pending_interrupt is None
        assert saver.load("t").metadata["resumed"] == answer
        assert [each.note for each in saver.list("t")] == [f"resume: {decision}", "interrupt", None]
        assert saver.load("t").state["todos"] == ["delete"]


def test_an_answer_to_something_else_is_an_error(anywhere):
    saver = anywhere.open()
    pending = waiting(saver).pending_interrupt
    with pytest.raises(Conflict, match=f"waits for interrupt '{pending['id']}', not 'another'"):
        saver.resume("t", "approve", interrupt_id="another")
    with pytest.raises(InvalidInput, match="edit requires the new value"):
        saver.resume("t", "edit")
    with pytest.raises(InvalidInput, match="the other decisions take none"):
        saver.resume("t", "approve", value={"tool": "other"})
    with pytest.raises(InvalidInput, match="'perhaps' is not a decision"):
        saver.resume("t", "perhaps")
    assert saver.load("t").pending_interrupt == pending
    saver.resume("t", "approve")
    with pytest.raises(Conflict, match="has no pending interrupt"):
        saver.resume("t", "approve", interrupt_id=pending["id"])
    with pytest.raises(Conflict, match="has no pending interrupt"):
        saver.resume("nobody", "approve")


def test_of_two_answers_the_second_is_refused(anywhere):
    saver = anywhere.open()
    waiting(saver)
    answered = []

    def answer_first(_):
        if not answered:
            answered.append(saver.resume("t", "deny"))

    late = anywhere.open(hooks={"pre_checkpoint_save": [answer_first]})
    with pytest.raises(Conflict, match="t"):
        late.resume("t", "approve")
    assert saver.load("t").metadata["resumed"]["decision"] == "deny"


def test_a_fork_keeps_all_that_its_origin_had(anywhere):
    saver = anywhere.open()
    asked = waiting(saver)
    fork = saver.fork("t", "bolder")
    assert fork.pending_interrupt == asked.pending_interrupt
    assert fork.messages == asked.messages
    assert fork.state == asked.state
    assert (fork.step, fork.note) == (asked.step, asked.note)
    assert fork.parent_id == fork.metadata["forked_from"] == asked.id
    resumed = saver.resume("bolder", "approve", interrupt_id=asked.pending_interrupt["id"])
    assert resumed.step == asked.step + 1
    assert saver.load("t").pending_interrupt == asked.pending_interrupt
    assert {each.thread_id for each in saver.list("bolder")} == {"bolder"}


def test_a_fork_of_an_earlier_checkpoint_has_nothing_pending(anywhere):
    saver = anywhere.open()
    waiting(saver)
    first = list(saver.list("t"))[-1]
    fork = saver.fork("t", "earlier", checkpoint_id=first.id)
    assert fork.pending_interrupt is None
    assert fork.metadata == {"user": "alice", "forked_from": first.id}
    with pytest.raises(Conflict, match="exists"):
        saver.fork("t", "earlier")
    with pytest.raises(NotFound):
        saver.fork("nobody", "somebody")
    with pytest.raises(NotFound):
        saver.fork("earlier", "another", checkpoint_id=first.id)


def test_forks_of_files_are_copies_and_forks_of_stores_share(tmp_path):
    copies = FileSaver(tmp_path)
    waiting(copies)
    copies.fork("t", "fork")
    assert copies.delete("t")
    assert copies.load("fork").messages == [{"role": "user", "content": "delete my notes"}]
    sharing = MemorySaver()
    waiting(sharing)
    sharing.fork("t", "fork")
    with pytest.raises(Conflict):
        sharing.delete("t")
    assert sharing.load("t") is not None
    assert sharing.delete("t", cascade=True)
    assert list(sharing.list()) == []


def test_savers_and_threads_answer_each_other():
    with treering.open("memory:") as store:
        saver = MemorySaver(store, namespace="alice")
        pending = waiting(saver).pending_interrupt
        thread = store.thread("t", namespace="alice")
        with pytest.raises(Conflict, match="not 'another'"):
            thread.resume("approve", interrupt_id="another")
        thread.resume("edit", interrupt_id=pending["id"], value={"tool": "ls"})
        assert saver.load("t").metadata["resumed"]["payload"] == {"tool": "ls"}
        again = thread.interrupt("may I?")
        fork = thread.fork("fork")
        assert fork.head.pending_interrupt == again.pending_interrupt
        assert saver.resume("fork", "deny").metadata["resumed"]["decision"] == "deny"
        assert thread.head.pending_interrupt == again.pending_interrupt


def test_a_pending_interrupt_of_any_shape_can_be_answered():
    saver = MemorySaver()
    saver.save(thread_id="t", pending_interrupt="may I?")
    assert saver.resume("t", "approve").metadata["resumed"] == {
        "id": None,
        "decision": "approve",
        "payload": "may I?",
    }
