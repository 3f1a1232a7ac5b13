"""A small agent loop that needs no framework: a model, tools, and conversations that are kept."""

from treering.agent.agent import Agent, create_agent
from treering.agent.loop import CheckpointWarning
from treering.agent.messages import ToolCall
from treering.agent.middleware import Middleware
from treering.agent.results import Context, Part, Result
from treering.agent.tools import Tool, tool
from treering.limits.tool_budgets import Budget

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
