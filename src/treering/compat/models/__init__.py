"""Orchestrator's entities, to be read with ``select``: runs, spans, messages, tools, payloads.

They are SQL views over the journal, on SQLite and PostgreSQL, one per table of the document and with its
columns. Reading is all that they are for; writing goes through `treering.compat.services` and `store.run`.
"""

try:
    from treering.compat.models.connections import ReadingSession, open_session
    from treering.compat.models.entities import AgentSpan, BlobRef, Message, Run, ToolCall, ToolResult
except ModuleNotFoundError as error:
    from treering.errors import MissingExtra

    raise MissingExtra("treering.compat.models", "models") from error

__all__ = [
    "AgentSpan",
    "BlobRef",
    "Message",
    "ReadingSession",
    "Run",
    "ToolCall",
    "ToolResult",
    "open_session",
]
