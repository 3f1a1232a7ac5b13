"""The OpenAI Agents SDK on a treering store: sessions and tracing."""

from treering.adapters.openai_agents.session import TreeringSession
from treering.adapters.openai_agents.tracing import TreeringTracingProcessor

__all__ = ["TreeringSession", "TreeringTracingProcessor"]
