"""The tree that ``treering log`` draws.

Oldest moment at the top. The line to the head runs down the left; what a rewind left behind and the threads
that were forked off hang below the moment where they began.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from treering.cli.console import clean
from treering.cli.telling import as_json, message_count, one_line, pasteable, short_ids, speaker, when, words

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from treering.store import Store
    from treering.views.branches import Growth
    from treering.views.checkpoints import Checkpoint

_SHORTEST: Final = 18
_PIPE_WIDTH: Final = 10_000
"""Whoever reads from a pipe gets whole lines."""


def draw(store: Store, growth: Growth) -> None:
    """Print the tree."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(_Drawing(store, growth).tree())


class _Drawing:
    def __init__(self, store: Store, growth: Growth) -> None:
        self._store = store
        self._growth = growth
        self._short = short_ids((each.id for each in growth.moments), _SHORTEST)
        self._children: dict[str | None, list[Checkpoint]] = {}
        for each in reversed(growth.moments):
            parent = each.parent if each.parent in self._short else None
            self._children.setdefault(parent, []).append(each)

    def tree(self) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        growth = self._growth
        tree = Tree(_title(growth))
        if growth.older is not None:
            more = f"… older moments: {pasteable('log', growth.thread, '--before', growth.older)}"
            tree.add(Text(more, style="dim"))
        roots = self._children.get(None, [])
        waiting: list[tuple[Tree, Checkpoint]] = []
        for each in roots:  # a fork that was rewound to before its beginning has several
            is_left = len(roots) > 1 and each.id not in growth.line
            waiting.append((tree.add(Text("left behind", style="dim")) if is_left else tree, each))
        waiting.reverse()
        while waiting:
            self._grow(*waiting.pop(), waiting)
        return tree

    def _grow(self, trunk: Tree, first: Checkpoint, waiting: list[tuple[Tree, Checkpoint]]) -> None:
        """Draw one branch from its first moment to its last; side branches wait for their turn."""
        from rich.text import Text

        moment: Checkpoint | None = first
        while moment is not None:
            node = trunk.add(self._label(moment))
            for fork in self._growth.forks:
                if fork.at == moment.id:
                    name = f"{fork.namespace}: {fork.thread}" if fork.namespace else fork.thread
                    node.add(Text(clean(f"fork {name}, now at step {fork.step}"), style="cyan"))
            children = self._children.get(moment.id, [])
            straight = self._straight(moment, children)
            why = self._why(moment)
            waiting += [
                (node.add(Text(why, style="dim")), child) for child in children if child is not straight
            ]
            moment = straight

    def _straight(self, moment: Checkpoint, children: list[Checkpoint]) -> Checkpoint | None:
        """The child that goes on in the same branch: the one to the head, else the newest."""
        for child in children:
            if child.id in self._growth.line:
                return child
        if moment.id in self._growth.line:
            return None
        return children[-1] if children else None

    def _why(self, moment: Checkpoint) -> str:
        times = [each.at for each in self._growth.rewinds if each.to == moment.id]
        return f"left behind by the rewind of {when(times[-1])}" if times else "left behind"

    def _label(self, moment: Checkpoint) -> Text:
        from rich.text import Text

        is_head = moment.id == self._growth.thread.head
        is_left = moment.id not in self._growth.line
        label = Text(style="dim" if is_left else "")
        label.append(f"{moment.step:>3}  ", style="bold")
        label.append(self._short[moment.id], style="yellow")
        label.append(f"  {when(moment.created_at)}  ")
        label.append(clean(" ".join(moment.note.split())) if moment.note else self._preview(moment))
        for tag in moment.tags:
            label.append(f" [{clean(tag)}]", style="magenta")
        if moment.pending_interrupt is not None:
            asked = _asked(moment.pending_interrupt)
            label.append(f"  waits for a decision: {asked}" if is_head else f"  asked: {asked}", style="red")
        if is_head:
            label.append("  ← head", style="bold green")
        return label

    def _preview(self, moment: Checkpoint) -> str:
        count = message_count(moment)
        if not count:
            return "no messages"
        (last,) = self._store.thread(moment.thread, moment.namespace or None).at(moment.id).last_messages(1)
        return f"{speaker(last)}: {one_line(words(last))}"


def _title(growth: Growth) -> Text:
    from rich.text import Text

    thread = growth.thread
    title = Text(clean(thread.id), style="bold")
    if thread.namespace:
        title.append(f" of {clean(thread.namespace)}")
    if growth.origin is not None:
        title.append(f"  forked from {clean(growth.origin.thread)}@{growth.origin.step}", style="cyan")
    return title


def _asked(pending: Any) -> str:
    payload = pending.get("payload", pending) if isinstance(pending, dict) else pending  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return one_line(clean(as_json(payload)))
