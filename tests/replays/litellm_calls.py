"""LiteLLM under `treering.instrument()`, in a process of its own: it keeps loops and sockets for good.

``python -m tests.replays.litellm_calls STORE URL sync|async whole|streamed`` prints the answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or importing it downloads one

import litellm

import treering
from tests.replays.provider import plan


def call(url: str, messages: list[dict[str, str]], *, stream: bool) -> str:
    given: dict[str, Any] = {
        "model": "openai/gpt-5",
        "messages": messages,
        "api_key": "sk-1",
        "num_retries": 0,
    }
    given |= {"api_base": f"{url}/v1", "stream_options": {"include_usage": True} if stream else None}
    done = litellm.completion(**given, stream=stream)
    if not stream:
        return done.choices[0].message.content
    return "".join(each.choices[0].delta.content or "" for each in done if each.choices)


async def call_async(url: str, messages: list[dict[str, str]], *, stream: bool) -> str:
    given: dict[str, Any] = {"model": "anthropic/claude-sonnet-4-6", "messages": messages, "api_key": "sk-1"}
    done = await litellm.acompletion(**given, api_base=url, stream=stream, num_retries=0)
    if not stream:
        return done.choices[0].message.content
    return "".join([each.choices[0].delta.content or "" async for each in done if each.choices])


def main(folder: str, url: str, kind: str, form: str) -> None:
    messages = [{"role": "user", "content": plan("Seven oaks.")}]
    stream = form == "streamed"
    with treering.open(folder) as store, treering.instrument(store):
        if kind == "async":
            text = asyncio.run(call_async(url, messages, stream=stream))
        else:
            text = call(url, messages, stream=stream)
    sys.stdout.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
