"""A small agent loop that needs no framework: a model, tools, and conversations that are kept."""

from treering.agent.agent import Agent, create_agent
from treering.agent.loop import CheckpointWarning
from treering.agent.middleware import Middleware
from treering.agent.parts import Context, Part, Result
from treering.agent.shapes import ToolCall
from treering.agent.tools import Tool, tool
from treering.views.budgets import Budget

__all__ = [
    "Agent",
    "Budget",
    "CheckpointWarning",
    "Context",
    "Middleware",
    "Part",
    "Result",
    "Tool",
    "ToolCall",
    "create_agent",
    "tool",
]
