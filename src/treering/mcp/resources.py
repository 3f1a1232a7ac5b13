"""Resources: documents, conversations and checkpoints by address, for clients that attach them; and prompts.

``memory://alice/tone``, ``thread://support/alice`` and ``checkpoint://ckpt_...`` (also
``checkpoint://A/diff/B``). Ids are percent-encoded where a URI needs it; ``?namespace=`` says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import anyio.to_thread
import msgspec
from mcp.server.mcpserver import MCPServer, ResourceSecurity
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    Resource,
    ResourceTemplateReference,
)
from pydantic import Field

from treering.core.query import EventQuery, each_record
from treering.errors import NotFound, TreeringError
from treering.mcp.replies import Replies, excerpt, fitted, plain
from treering.mcp.threads import about_checkpoint, find_checkpoint, with_messages
from treering.threads.checkpoint import KIND as CHECKPOINT
from treering.threads.checkpoint import Checkpoint
from treering.threads.directory import Finder

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.store import Store
    from treering.threads.diff import Difference


LISTED_DOCUMENTS: Final = 100
LISTED_THREADS: Final = 50
_MESSAGES: Final = 200
# Ids are names in a store, never paths of a file system: `..` in one is two dots.
_NAMES: Final = ResourceSecurity(reject_path_traversal=False, reject_absolute_paths=False)


class Resources:
    """The resources that a client can read by URI, each cut to the size limit."""

    def __init__(self, store: Store, limit_bytes: int) -> None:
        self._store = store
        self._limit = limit_bytes
        self._replies = Replies(limit_bytes)

    def add_to(self, server: MCPServer[Any]) -> None:
        """Register the templates."""
        server.resource(
            "memory://{+id}{?namespace}",
            name="memory",
            description="A remembered document, as Markdown",
            mime_type="text/markdown",
            security=_NAMES,
        )(self.memory)
        server.resource(
            "thread://{+id}{?namespace}",
            name="thread",
            description="The newest messages of a conversation, as JSON",
            mime_type="application/json",
            security=_NAMES,
        )(self.thread)
        server.resource(
            "checkpoint://{before}/diff/{after}",
            name="checkpoint difference",
            description="What changed between two checkpoints: messages, state and files, as JSON",
            mime_type="application/json",
        )(self.difference)
        server.resource(
            "checkpoint://{id}",
            name="checkpoint",
            description="One checkpoint of a conversation: its messages and state, as JSON",
            mime_type="application/json",
        )(self.checkpoint)

    def listed(self) -> list[Resource]:
        """List documents (those with auto_load first) and the threads that changed last."""
        memory = self._store.memory
        documents = memory.query(auto_load=True, limit=LISTED_DOCUMENTS)
        documents += memory.query(auto_load=False, limit=LISTED_DOCUMENTS - len(documents) or 1)
        found = [
            Resource(
                uri=f"memory://{quote(each.id)}",
                name=each.id,
                description=excerpt(" ".join(each.content.split()), 100),
                mime_type="text/markdown",
            )
            for each in documents[:LISTED_DOCUMENTS]
        ]
        for _, each in zip(range(LISTED_THREADS), self._store.threads(namespace=None), strict=False):
            whose = f"?namespace={quote(each.namespace, safe='')}" if each.namespace else ""
            found.append(
                Resource(
                    uri=f"thread://{quote(each.id)}{whose}",
                    name=each.id,
                    description=f"a conversation at step {each.step}, last changed {each.updated_at}",
                    mime_type="application/json",
                )
            )
        return found

    def memory(self, id: str, namespace: str = "") -> str:
        """Return the text of a document."""

        def read() -> str:
            memory = self._store.memory.in_namespace(namespace) if namespace else self._store.memory
            document = memory.get(id)
            if document is None:
                raise NotFound(f"there is no memory {id!r}; the tool memory_search finds what there is")
            return _cut(document.content, self._limit)

        return _answered(read)

    def thread(self, id: str, namespace: str = "") -> str:
        """Return the newest messages of a thread."""
        return _answered(lambda: self._portrait(find_checkpoint(self._store, id, "", namespace)))

    def checkpoint(self, id: str) -> str:
        """Return one checkpoint."""
        return _answered(lambda: self._portrait(self._checkpoint(id), state=True))

    def difference(self, before: str, after: str) -> str:
        """Compare two checkpoints."""

        def read() -> str:
            old, new = self._checkpoint(before), self._checkpoint(after)
            changes = self._store.thread(new.thread_id, new.namespace).diff(old, new)
            return self._json(plain(_difference(changes)))

        return _answered(read)

    def _checkpoint(self, id: str) -> Checkpoint:
        found = Finder(self._store.engine, self._store.space).by_prefix(id)
        return Checkpoint(self._store.engine, self._store.space, found)

    def _portrait(self, checkpoint: Checkpoint, *, state: bool = False) -> str:
        facts = about_checkpoint(checkpoint)
        if state:
            facts["state"] = fitted(plain(checkpoint.state), self._replies.text_room(facts) // 2)
        tail = checkpoint.last_messages(_MESSAGES)
        return self._json(with_messages(self._replies, facts, tail, checkpoint.message_count - len(tail)))

    def _json(self, value: Any) -> str:
        return msgspec.json.encode(fitted(value, self._limit)).decode()


def _difference(changes: Difference) -> dict[str, Any]:
    return {
        "before": changes.before,
        "after": changes.after,
        "common_messages": changes.common,
        "added": [{"index": index, "message": message} for index, message in changes.added],
        "removed": [{"index": index, "message": message} for index, message in changes.removed],
        "changed": [
            {"index": each.index, "before": each.before, "after": each.after} for each in changes.changed
        ],
        "state": changes.state,
        "lists": changes.lists,
        "files": [msgspec.to_builtins(each) for each in changes.files],
    }


def _cut(text: str, limit: int) -> str:
    """Cut text to a number of bytes, and say how much is missing."""
    data = text.encode()
    if len(data) <= limit:
        return text
    kept = data[: limit - 100].decode(errors="ignore")
    return f"{kept}\n… (+{len(text) - len(kept)} characters; the tool memory_get reads on with offset)"


def _answered(read: Callable[[], str]) -> str:
    try:
        return read()
    except NotFound as error:
        raise ResourceNotFoundError(str(error)) from error
    except TreeringError as error:
        raise ResourceError(str(error)) from error


# -----------------------------------------------------------------------------------------------------------
# Prompts: ways to begin that a person picks from a menu.


class Prompts:
    """The prompts that a person can choose by name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_to(self, server: MCPServer[Any]) -> None:
        """Register the prompts."""
        described = {
            self.recall: "Look up what is remembered about a topic before answering.",
            self.remember: "Keep something for later conversations, in the right document.",
            self.load_context: "Load the documents that belong into every context.",
            self.resume_thread: "Go on with an earlier conversation.",
        }
        for function, description in described.items():
            server.prompt(description=description)(function)

    def recall(self, topic: Annotated[str, Field(description="What it is about")]) -> str:
        """Look up a topic."""
        return (
            f"Find out what is remembered about: {topic}\n\n"
            "Use memory_search, then history_search for what was said about it. Say what you found and in "
            "which document or thread; say so plainly when there is nothing."
        )

    def remember(self, what: Annotated[str, Field(description="What shall be remembered")]) -> str:
        """Keep something."""
        return (
            f"Remember this for later conversations: {what}\n\n"
            "Look with memory_search for a document that it belongs into. If there is one, read it with "
            "memory_get and save the changed text with memory_save and if_version; else save a new, short "
            "document under a path-like id."
        )

    def load_context(
        self, namespace: Annotated[str, Field(description="Whose memory; empty for the shared one")] = ""
    ) -> str:
        """The documents that load by themselves."""
        memory = self._store.memory.in_namespace(namespace) if namespace else self._store.memory
        context = memory.context(max_documents=50, max_tokens=8000)
        left = (
            f"\n\n({len(context.omitted)} more did not fit; memory_search finds them.)"
            if context.omitted
            else ""
        )
        return f"This is what you remember:\n\n{context.text or '(nothing yet)'}{left}"

    def resume_thread(self, thread: Annotated[str, Field(description="The thread's id")]) -> str:
        """Go on where a conversation ended."""
        return (
            f"Read the conversation {thread!r} with thread_read, tell me in three sentences where it stands "
            "and what was open, and go on from there."
        )


# -----------------------------------------------------------------------------------------------------------
# Completion: the ids and namespaces that begin as the client has typed.

_MAX_COMPLETIONS: Final = 100
"""As many as the protocol allows."""
_MAX_SCANNED: Final = 2000


class Completions:
    """Completes the arguments of resource templates and prompts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def complete(
        self,
        ref: ResourceTemplateReference | PromptReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        """Return the values that an argument may have."""
        of = ref.name if isinstance(ref, PromptReference) else ref.uri.partition(":")[0]
        given = (context.arguments if context is not None else None) or {}
        return await anyio.to_thread.run_sync(self._values, of, argument, given.get("namespace", ""))

    def _values(self, of: str, argument: CompletionArgument, namespace: str) -> Completion:
        typed = argument.value
        values: Iterable[str] = ()
        match of, argument.name:
            case "memory", "id":
                memory = self._store.memory.in_namespace(namespace) if namespace else self._store.memory
                documents = memory.query(prefix=typed, limit=_MAX_COMPLETIONS + 1)
                values = (each.id for each in documents)
            case "thread" | "resume_thread", "id" | "thread":
                values = (each.id for each in self._store.threads(namespace=namespace, prefix=typed))
            case "checkpoint", _:
                values = self._checkpoints(typed)
            case "memory" | "load_context", "namespace":
                values = (each for each in self._store.memory.namespaces() if each.startswith(typed))
            case "thread", "namespace":
                threads = islice(self._store.threads(namespace=None), _MAX_SCANNED)
                values = (each.namespace for each in threads if each.namespace.startswith(typed))
            case _:
                pass
        found = list(dict.fromkeys(islice(filter(None, values), _MAX_SCANNED)))
        has_more = len(found) > _MAX_COMPLETIONS
        return Completion(values=found[:_MAX_COMPLETIONS], has_more=has_more)

    def _checkpoints(self, typed: str) -> Iterator[str]:
        """Yield the ids of checkpoints that begin so, newest first."""
        query = EventQuery(kinds=(CHECKPOINT,), newest_first=True)
        records = each_record(self._store.engine, self._store.space, query, limit=_MAX_COMPLETIONS + 1)
        return (
            record.event.id for record in islice(records, _MAX_SCANNED) if record.event.id.startswith(typed)
        )
