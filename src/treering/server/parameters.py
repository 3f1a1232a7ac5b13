"""What each parameter of a route means: the descriptions of parameters in the OpenAPI document.

Most parameters mean the same in every route. Where one does not, the route's tag, or its operation id, says
which meaning applies. **Invariant:** a parameter without a description fails when the document is made.
"""

from __future__ import annotations

from typing import Final

EVERYWHERE: Final = {
    "a": "The first of the two to compare.",
    "after": "Start after this sequence number; unset for new events only. `Last-Event-ID` takes precedence.",
    "agent": "Only what this agent did.",
    "all": "Show finished tasks as well.",
    "auto_load": "Only documents that are (or are not) loaded into every prompt.",
    "b": "The second of the two to compare.",
    "by": "What to group by.",
    "cascade": "Erase the forks that share its past as well; otherwise they are a conflict.",
    "checkpoint": "The id of a checkpoint, or a unique beginning of it.",
    "containing": "Only ids that have this text anywhere, in any case.",
    "contents": "Whether to return the messages, inputs and outputs too.",
    "currency": "Convert amounts to this currency, such as `EUR`; unset for each in its own.",
    "cursor": "The `next_cursor` of the previous page; unset for the first page.",
    "download": "Send the file as an attachment, to be saved by a browser.",
    "event": "The id of the event.",
    "everything": "Include checkpoints that a rewind left behind.",
    "everywhere": "Search all namespaces.",
    "if_version": "Delete only this version; a conflict if there is a newer one.",
    "include_expired": "Include documents that have expired.",
    "key": "The key of the value, percent-encoded.",
    "kind": "Only this kind: `message`, or a kind of span (`agent`, `llm`, `tool`, ...).",
    "kinds": "Only these kinds, such as `span.tool`, or `span` for all spans. Repeat it, or use commas.",
    "last": "Return only so many messages from the end; unset for all.",
    "last_days": "Over how many days the trend is computed.",
    "limit": "The most that a page returns.",
    "match": "Whether a document needs `any` of the tags, or `all` of them.",
    "mine": "Only questions that the caller may answer now.",
    "model": "Only calls of this model.",
    "most": "How many groups to return at most.",
    "namespace": "The namespace of a user or project within the store; empty for none.",
    "number": "The number of the seal.",
    "other": "The run to compare with, by its id or a unique beginning of it.",
    "path": "A path within the snapshot.",
    "prefix": "Only ids that begin with this text.",
    "q": "The words to search for. All of them must occur.",
    "readable": "Add the messages as roles and parts (text, tool calls, images, ...), whatever their format.",
    "recursive": "List the folders below as well.",
    "run": "Only this run.",
    "shape": "`journal` for rows of the journal, `timeline` for events as in `/runs/{id}/timeline`.",
    "since": "The first day, such as `2026-11-16` (UTC).",
    "since_us": "From this time on, in microseconds since 1970.",
    "skip": "How many steps to leave out at the beginning: the `next_skip` of the previous page.",
    "sort": "The most of this first, in one page; unset for the newest first.",
    "span": "Only this span, and those below it.",
    "status": "Only this status: `ok`, `error`, `running`, `crashed`, ...",
    "tag": "Only what has this tag. Where it can be repeated, see `match`.",
    "text": "Only events in which all of these words occur (name, input or output; stemmed).",
    "thread": "Only this thread.",
    "tool": "Only what is about this tool.",
    "types": "`all` for more than the five usual types of event.",
    "until": "The last day, such as `2026-11-30` (UTC).",
    "until_us": "Up to, but not including, this time, in microseconds since 1970.",
    "version": "The version; unset for the newest.",
}
"""The meaning of a parameter where nothing below says otherwise."""

OF_TAG: Final = {
    ("runs", "id"): "The id of the run, or a unique beginning of it.",
    ("threads", "id"): "The id of the thread, percent-encoded.",
    ("memory", "id"): "The id of the document, percent-encoded.",
    ("memory", "a"): "The first version to compare.",
    ("memory", "b"): "The second version to compare; unset for the newest.",
    ("memory", "tag"): "Only documents with this tag. Repeat it for several; see `match`.",
    ("workspaces", "id"): "The id of the snapshot, or a unique beginning of it.",
    ("workspaces", "name"): "Only snapshots of the workspace with this name.",
    ("sandboxes", "id"): "The id of the checkpoint, or a unique beginning of it.",
    ("schedules", "id"): "The id of the task.",
    ("keys", "id"): "The id of the key, which is no secret.",
    ("effects", "id"): "The id of the effect.",
    ("approvals", "id"): "The id of the question, or a unique beginning of it.",
    ("approvals", "name"): "The name of the rule.",
    ("approvals", "status"): "`open` ones, `answered` ones whose thread has not gone on, or `closed` ones.",
    ("approvals", "namespace"): "Only threads of this namespace; unset for all.",
    ("approvals", "cursor"): "The last id of the previous page; unset for the first page.",
    ("effects", "status"): "Only effects that stand so.",
    ("effects", "checkpoint"): "Only effects that may have happened since this checkpoint of the thread.",
    ("gateway", "namespace"): "The namespace within the key's project; `default` is the project itself.",
    ("budgets", "name"): "The name of the budget.",
    ("alerts", "name"): "The name of the rule or webhook.",
}

OF_OPERATION: Final = {
    ("compare_agents", "agent"): "An agent to compare. Repeat it for each.",
    ("diff_snapshots", "text"): "Whether to return the changed lines of text files.",
    ("get_view", "budget_tokens"): "How many tokens it may have; unset for no limit.",
    ("get_view", "model"): "The model whose tokenizer counts, if that is installed; else an estimate.",
    ("get_view", "full"): "Disregard compactions.",
    ("uncompact_thread", "everything"): "Remove all compactions, not only the newest.",
    ("diff_threads", "other"): "The thread that `b` is a checkpoint of; unset for the same thread.",
    ("get_span", "span"): "The id of the span or message.",
    ("get_thread_timeline", "id"): "The id of the thread, percent-encoded.",
    ("list_budgets", "agent"): "Return the usage of this agent.",
    ("list_budgets", "run"): "Return the usage of this run.",
    ("list_budgets", "thread"): "Return the usage of this thread.",
    ("search", "limit"): "The most hits to return.",
    ("search_everything", "limit"): "The most hits of each kind.",
    ("search_memory", "limit"): "The most hits to return.",
}


def describe(operation: str, tag: str, name: str) -> str | None:
    """Return what a parameter of an operation means; ``None`` if nothing is known of it."""
    return OF_OPERATION.get((operation, name)) or OF_TAG.get((tag, name)) or EVERYWHERE.get(name)
