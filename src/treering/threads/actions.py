"""Actions: what a moderator may ask for between two iterations of a conversation.

CONTINUE changes nothing, STOP sets ``stop_flag``, STEP_BACK goes back some iterations. Iterations are counted
by ``iter`` in the state, or by steps if it has none. **Invariant:** an action moves the head or saves a
checkpoint; it never shortens the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from treering.limits.tool_budgets import Budgets
    from treering.threads.checkpoint import Checkpoint
    from treering.threads.thread import Thread

STOP_FLAG: Final = "stop_flag"
SUMMARY: Final = "running_summary"
ITERATION: Final = "iter"


class Actions(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next; ``rollback`` (iterations) and ``clear_summaries`` apply to STEP_BACK."""

    type: Literal["CONTINUE", "STOP", "STEP_BACK"] = "CONTINUE"
    rollback: int = 1
    clear_summaries: bool = False


def parse_actions(actions: Actions | Mapping[str, Any] | None) -> Actions:
    """Validate actions as a moderator wrote them; ``None`` means CONTINUE."""
    if actions is None:
        return Actions()
    try:
        parsed = actions if isinstance(actions, Actions) else msgspec.convert(dict(actions), Actions)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"invalid actions: {error}; give type (CONTINUE, STOP or STEP_BACK), rollback and clear_summaries"
        ) from error
    if parsed.rollback < 0:
        raise InvalidInput(f"rollback is {parsed.rollback}; give the iterations to go back, 0 or more")
    return parsed


def apply_actions(thread: Thread, actions: Actions, *, to: Any, budgets: Budgets | None) -> Checkpoint | None:
    """Carry out actions on a thread and on the live object ``to``, if given. Return the head after them."""
    head = thread.head
    if actions.type == "STOP":
        return _stop(thread, head, to)
    if actions.type == "CONTINUE" or head is None:
        return head
    target = iterations_back(thread.history(), actions.rollback) or head
    checkpoint: Checkpoint | None = head if target == head else thread.rewind(target)
    if actions.clear_summaries:
        cleared = {**target.state, SUMMARY: None}
        checkpoint = thread.checkpoint(state=cleared, metadata=target.metadata, note="clear summaries")
    if to is not None or budgets is not None:
        thread.restore_state({} if to is None else to, budgets=budgets)
    return checkpoint


def _stop(thread: Thread, head: Checkpoint | None, to: Any) -> Checkpoint | None:
    if to is not None:
        if isinstance(to, dict):
            to[STOP_FLAG] = True
        else:
            setattr(to, STOP_FLAG, True)
        return thread.snapshot_state(to, note="stop")
    if head is None:
        return thread.checkpoint(state={STOP_FLAG: True}, note="stop")
    return thread.checkpoint(state={**head.state, STOP_FLAG: True}, metadata=head.metadata, note="stop")


def iterations_back(line: Iterable[Checkpoint], count: int) -> Checkpoint | None:
    """Return where the iteration ``count`` iterations before the newest checkpoint began.

    If the line is shorter than that, returns its oldest checkpoint. Reads only ``iter`` of the checkpoints.
    """
    target: Checkpoint | None = None
    goal = 0
    for checkpoint in line:
        at = _iteration(checkpoint)
        if target is None:
            target, goal = checkpoint, at - count
            if count == 0:
                return target
        elif at >= goal:
            target = checkpoint
        else:
            return checkpoint if _iteration(target) > goal else target
    return target


def _iteration(checkpoint: Checkpoint) -> int:
    number = checkpoint.value(ITERATION)
    return number if isinstance(number, int) else checkpoint.step
