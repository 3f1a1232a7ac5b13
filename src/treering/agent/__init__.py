"""A small agent loop without a framework: a model, tools, and conversations that are stored."""

from treering.agent.agent import Agent, create_agent
from treering.agent.loop import CheckpointWarning, Middleware
from treering.agent.messages import AgentEvent, Context, Message, Result, ToolCall
from treering.agent.tools import Tool, tool
from treering.limits.tool_budgets import Budget

__all__ = [
    "Agent",
    "AgentEvent",
    "Budget",
    "CheckpointWarning",
    "Context",
    "Message",
    "Middleware",
    "Result",
    "Tool",
    "ToolCall",
    "create_agent",
    "tool",
]
