"""Sub-agents: an agent that is a tool of another one, and resumes with it.

`Agent.as_tool` makes a tool whose call is a run of the sub-agent, on a thread of its own. The thread's id
follows from the thread and the run of the parent and the id of the call, so whoever makes the call again
(after a crash, or in another process) finds the sub-agent where it stopped: a conversation that has not
begun gets the prompt, an unfinished one goes on, and the answer of a finished one is returned. An effect
(see `treering.effects`) keeps a second process from running it at the same time, and stores its answer.

A fork of the parent's thread has a sub-agent of its own: at the fork's first call, its thread is forked from
the original's, as that was when the parent was forked, and only if the call was already being made then.

If the sub-agent waits for a person, so does the parent: its run ends with the sub-agent's question as its
interrupt, and continues without a prompt once that is answered.

**Invariant:** one call of a parent is one conversation of the sub-agent, however often it is resumed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from treering.agent.messages import Context, answer_of
from treering.agent.tools import Tool
from treering.effects.effects import Attempt, Intent
from treering.errors import Conflict, InvalidInput, NotFound
from treering.runs.run import link_thread
from treering.runs.span import current_node
from treering.runs.tree import RunCancelled, cost_below

if TYPE_CHECKING:
    from treering.agent.agent import Agent
    from treering.store import Store
    from treering.threads.thread import Thread

RUN_KEY: Final = "treering.agent"
"""The state value of a thread that describes an unfinished run."""
_LONGEST: Final = 200


class SubAgentWaits(Exception):
    """A sub-agent waits for a person; ``pending`` is its question, with the ``thread`` that waits."""

    def __init__(self, thread_id: str, pending: Any) -> None:
        self.pending: dict[str, Any] = {"payload": pending, **(pending if isinstance(pending, dict) else {})}
        self.pending["thread"] = thread_id
        super().__init__(f"sub-agent {thread_id!r} waits for a person")


class SubAgentStopped(Exception):
    """A sub-agent was cancelled by itself; the model of the parent reads this as the result of its call."""


def subagent_tool(agent: Agent, store: Store | None, name: str, namespace: str, description: str) -> Tool:
    """Return a tool that runs an agent; ``store`` is where its conversations are."""
    if store is None:
        raise InvalidInput(
            f"agent {name!r} has no store to keep its conversations in, so it could not be resumed; "
            "create it with checkpointer= (a store, or the URL of one)"
        )

    def run_agent(prompt: str, context: Context) -> str:
        thread = _child_thread(store, namespace, name, context)
        intent = Intent(
            id=f"subagent-{_digest(thread.id, namespace)}",
            tool=name,
            arguments={"prompt": prompt},
            takes_key=True,  # it may be made again: the sub-agent goes on where it stopped
            call_id=None if context.call is None else context.call.id,
            thread_id=context.thread_id,
            namespace=context.namespace,
            run_id=context.run_id,
        )
        begun = store.effects.open(intent)
        if isinstance(begun, Attempt):
            with begun:
                if context.thread_id is not None:
                    link_thread(
                        store.engine,
                        store.space,
                        (context.thread_id, context.namespace),
                        (thread.id, namespace),
                    )
                since_us, node = store.clock.now_us(), current_node.get()
                answer = _answer(agent, thread, prompt)
                cost = None if node is None else cost_below(store.engine, store.space, node, since_us)
                begun = begun.finish(answer, cost_nanos=cost)
        return str(begun.value())

    made = Tool(run_agent, name=name, description=description, replay="safe")
    made.is_agent = True
    return made


def _answer(agent: Agent, thread: Thread, prompt: str) -> str:
    """Start the sub-agent, let it go on, or return what it has said."""
    head = thread.head
    is_new = head is None
    if head is not None and RUN_KEY not in head.record.state and head.pending_interrupt is None:
        said = head.last_messages(1)
        return (answer_of(said[0]) if said else None) or ""
    try:
        result = agent.generate(
            thread_id=thread.id, prompt=prompt if is_new else None, checkpoint_after_tool_call=True
        )
    except RunCancelled as error:
        raise SubAgentStopped("it was cancelled before it had an answer") from error
    except Conflict as error:
        head = thread.head
        if head is None or head.pending_interrupt is None:
            raise
        raise SubAgentWaits(thread.id, head.pending_interrupt) from error
    if result.interrupt is not None:
        waits_in = result.interrupt.get("thread", thread.id)
        raise SubAgentWaits(waits_in, result.interrupt)
    return result.text


def _child_thread(store: Store, namespace: str, name: str, context: Context) -> Thread:
    """Return the thread of a call; in a fork of the parent, fork it from the original's."""
    thread = store.thread(_child_id(context.thread_id, name, context), namespace)
    if thread.head is None and context.forked_from is not None and context.forked_at_us is not None:
        original = store.thread(_child_id(context.forked_from, name, context), namespace)
        try:
            then = original.at(datetime.fromtimestamp(context.forked_at_us / 1e6, UTC))
        except NotFound:
            return thread  # it had not begun
        original.fork(thread.id, at=then)
    return thread


def _child_id(parent: str | None, name: str, context: Context) -> str:
    call = "" if context.call is None else context.call.id
    digest = _digest(parent or "", context.run_id, call)
    return f"{(parent or context.run_id)[:_LONGEST]}/{name}-{digest}"


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()
