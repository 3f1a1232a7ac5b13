"""LangGraph on a treering store: a checkpointer (`TreeringSaver`) and long-term memory (`TreeringStore`)."""

from treering.adapters.langgraph.saver import TreeringSaver
from treering.adapters.langgraph.store import TreeringStore

__all__ = ["TreeringSaver", "TreeringStore"]
