"""Items of the OpenAI Agents SDK, for tests of its sessions."""

from __future__ import annotations

from agents import RunConfig

QUIET = RunConfig(tracing_disabled=True)


def say(text, role="user"):
    return {"role": role, "content": text}


def texts(items):
    return [item["content"] for item in items]
