"""The store's hooks around a LangGraph saver: they see a checkpoint as every other saver's.

Without a hook none of this costs anything. A hook before the save is shown messages and state as plain
data; what it changes is what is saved (messages become LangChain messages again). **Invariant:** a step
that was vetoed is not in the journal, and the next one grows out of the last that was saved.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import structs

from treering.adapters.langchain_messages import copied, from_plain, kind_of, likeness, to_plain
from treering.views.checkpoints import MESSAGES
from treering.views.hooks import Saved, Saving
from treering.views.moments import Moment

if TYPE_CHECKING:
    from treering.adapters.langgraph_rows import Request
    from treering.adapters.langgraph_saving import Scribe
    from treering.adapters.langgraph_values import Values
    from treering.store import Store
    from treering.views.graph_ids import Place
    from treering.views.graphs import Graphs, Step

_VETOED: Final = 1024


class Hooked:
    """Saves through the hooks of a store."""

    def __init__(self, store: Store, scribe: Scribe) -> None:
        self._store = store
        self._scribe = scribe
        self._vetoed: OrderedDict[str, str | None] = OrderedDict()

    def put(self, values: Values, place: Place, request: Request) -> None:
        """Save a checkpoint, unless a hook vetoes it."""
        hooks = self._store.hooks
        if request.parent in self._vetoed:
            request = structs.replace(request, parent=self._vetoed[request.parent])
        if hooks.has("pre_checkpoint_save"):
            asked = self._saving(values, place, request)
            answer = hooks.before_save(asked)
            if answer is None:
                self._vetoed[request.checkpoint["id"]] = request.parent
                while len(self._vetoed) > _VETOED:
                    self._vetoed.popitem(last=False)
                return
            request = _changed(request, asked, answer)
        step = self._scribe.put(values, place, request)
        if hooks.has("post_checkpoint_save"):
            hooks.after_save(self._told(place, step))

    def loaded(self, place: Place, graph_id: str, graphs: Graphs) -> None:
        """A checkpoint was loaded."""
        hooks = self._store.hooks
        if hooks.has("post_checkpoint_load"):
            step = graphs.find(place, graph_id)
            if step is not None:
                hooks.after_load(self._told(place, step))

    def _told(self, place: Place, step: Step) -> Saved:
        moment = Moment(self._store.engine, self._store.space, step.checkpoint)
        return Saved(thread_id=place.thread, namespace=place.namespace, checkpoint=moment)

    def _saving(self, values: Values, place: Place, request: Request) -> Saving:
        channels = request.checkpoint["channel_values"]
        messages = channels.get(MESSAGES)
        return Saving(
            thread_id=place.thread,
            namespace=place.namespace,
            messages=[_plain(values, each) for each in cast("list[Any]", messages)]
            if isinstance(messages, list)
            else None,
            state={name: value for name, value in channels.items() if name != MESSAGES},
            metadata=dict(request.metadata),
        )


def _changed(request: Request, asked: Saving, answer: Saving) -> Request:
    checkpoint = dict(request.checkpoint)
    channels = dict(checkpoint["channel_values"])
    versions = dict(request.new_versions)
    if answer.state is not asked.state and answer.state is not None:
        kept = {MESSAGES: channels[MESSAGES]} if MESSAGES in channels else {}
        channels = {**answer.state, **kept}
        versions |= {name: checkpoint["channel_versions"].get(name, 1) for name in answer.state}
    if answer.messages is not asked.messages and answer.messages is not None:
        channels[MESSAGES] = [_message(each) for each in answer.messages]
        versions[MESSAGES] = checkpoint["channel_versions"].get(MESSAGES, 1)
    checkpoint["channel_values"] = channels
    return structs.replace(request, checkpoint=checkpoint, metadata=answer.metadata, new_versions=versions)


def _plain(values: Values, message: Any) -> Any:
    if not values.takes(message):
        return message
    return copied(to_plain(cast("type[Any]", type(message)), likeness(message)))  # the hook may change it


def _message(message: Any) -> Any:
    if kind_of(message) is not dict:
        return message
    found = from_plain(dict(cast("dict[str, Any]", message)))
    return message if found is None else found[0]
