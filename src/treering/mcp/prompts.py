"""Prompts: ways to begin that a person picks from a menu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import MCPServer
from pydantic import Field

if TYPE_CHECKING:
    from treering.store import Store


class Prompts:
    """What a person may ask for by name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_to(self, server: MCPServer[Any]) -> None:
        """Register all of them."""
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
        left = f"\n\n({len(context.cut)} more did not fit; memory_search finds them.)" if context.cut else ""
        return f"This is what you remember:\n\n{context.text or '(nothing yet)'}{left}"

    def resume_thread(self, thread: Annotated[str, Field(description="The thread's id")]) -> str:
        """Go on where a conversation ended."""
        return (
            f"Read the conversation {thread!r} with thread_read, tell me in three sentences where it stands "
            "and what was open, and go on from there."
        )
