"""A proxy in front of any MCP server, which makes each tool call once and records it.

    treering proxy mcp -- npx @shop/mcp-server

The client starts the proxy instead of the server and sees the same tools. A tool that says that it only reads
or that repeating it changes nothing (``readOnlyHint``, ``idempotentHint``) is passed on; any other call is an
effect. A tool with a parameter ``idempotency_key`` receives the key of the call, and the client does not see
the parameter. MCP has no id for a call that survives a crash: a call is recognised by its thread, tool and
arguments, if the last one like it has no outcome; ``_meta`` may name it (`EFFECT_META`).

**Invariant:** no call with effects is passed on whose intent is not durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from treering.adapters.tool_effects import IDEMPOTENCY_KEY, ToolEffects, named, takes_key, without_key
from treering.effects.effects import Effect, Replay
from treering.errors import InvalidInput, Unreachable

if TYPE_CHECKING:
    from treering.store import Store

EFFECT_META: Final = "treering/effect"
"""The field of a request's ``_meta`` with which a client names a call: the same name is the same call."""


class EffectProxy:
    """Passes tool calls on to an MCP server, each once; see the module."""

    def __init__(
        self, store: Store, upstream: Any, *, thread_id: str, replay: Mapping[str, Replay] | None = None
    ) -> None:
        self._calls = ToolEffects(store, replay=replay, agent="mcp")
        self._given = dict(replay or {})
        self._upstream = upstream
        self._thread_id = thread_id
        self._tools: dict[str, types.Tool] = {}
        self._client: Client | None = None

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout until it hangs up."""
        async with AsyncExitStack() as stack:
            server = await self.connect(stack)
            read, write = await stack.enter_async_context(stdio_server())
            await server.run(read, write, server.create_initialization_options())

    async def connect(self, stack: AsyncExitStack) -> Server[Any]:
        """Connect to the server behind, and return the one in front of it."""
        try:
            self._client = await stack.enter_async_context(Client(self._upstream))
        except (OSError, Exception) as error:
            raise Unreachable(
                f"the MCP server {_shown(self._upstream)} cannot be reached: {error}"
            ) from error
        offered = self._client.server_capabilities
        info = self._client.server_info
        more: dict[str, Any] = {}
        if offered.resources is not None:
            more |= {
                "on_list_resources": self._list_resources,
                "on_list_resource_templates": self._list_templates,
                "on_read_resource": self._read_resource,
            }
        if offered.prompts is not None:
            more |= {"on_list_prompts": self._list_prompts, "on_get_prompt": self._get_prompt}
        return Server(
            info.name if info is not None else "treering-proxy",
            version=info.version if info is not None else "",
            instructions=self._client.instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            **more,
        )

    async def _list_tools(self, _: Any, params: Any) -> types.ListToolsResult:
        found = await self._behind.list_tools(cursor=_cursor(params))
        self._tools |= {tool.name: tool for tool in found.tools}
        shown = [
            tool.model_copy(update={"input_schema": without_key(tool.input_schema)})
            if takes_key(tool.input_schema)
            else tool
            for tool in found.tools
        ]
        return found.model_copy(update={"tools": shown})

    async def _call_tool(self, _: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        name, arguments = params.name, dict(params.arguments or {})
        tool = await self._tool(name)
        hints = tool.annotations if tool is not None else None
        declared: Replay | None = (
            "safe" if hints is not None and (hints.read_only_hint or hints.idempotent_hint) else None
        )
        replay = self._calls.replay_of(name, declared)
        if tool is None or replay == "safe":
            return await self._behind.call_tool(name, arguments)
        has_key = takes_key(tool.input_schema)
        meta: Any = params.meta or {}
        chosen = meta.get(EFFECT_META)
        if chosen is not None:
            effect_id = named("mcp", self._thread_id, chosen)
        else:
            effect_id = await self._calls.arun(
                lambda: self._calls.recognised(self._thread_id, name, arguments, was_delivered=lambda _: True)
            )
        intent = self._calls.intent(
            effect_id, name, arguments, replay=replay, takes_key=has_key, thread_id=self._thread_id
        )

        async def call(effect: Effect) -> types.CallToolResult:
            key = {IDEMPOTENCY_KEY: effect.key} if has_key else {}
            return await self._behind.call_tool(name, {**effect.arguments, **key})

        result = await self._calls.acall(intent, call, plain=_plain)
        return _restored(result) if isinstance(result, Effect) else result

    async def _tool(self, name: str) -> types.Tool | None:
        if name not in self._tools:
            cursor: str | None = None
            while True:
                found = await self._behind.list_tools(cursor=cursor)
                self._tools |= {tool.name: tool for tool in found.tools}
                cursor = found.next_cursor
                if cursor is None:
                    break
        return self._tools.get(name)

    async def _list_resources(self, _: Any, params: Any) -> types.ListResourcesResult:
        return await self._behind.list_resources(cursor=_cursor(params))

    async def _list_templates(self, _: Any, params: Any) -> types.ListResourceTemplatesResult:
        return await self._behind.list_resource_templates(cursor=_cursor(params))

    async def _read_resource(
        self, _: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return await self._behind.read_resource(params.uri)

    async def _list_prompts(self, _: Any, params: Any) -> types.ListPromptsResult:
        return await self._behind.list_prompts(cursor=_cursor(params))

    async def _get_prompt(self, _: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        return await self._behind.get_prompt(params.name, params.arguments)

    @property
    def _behind(self) -> Client:
        if self._client is None:
            raise InvalidInput("the proxy is not connected; use serve_stdio()")
        return self._client


def upstream_of(words: list[str]) -> StdioServerParameters | str:
    """Return the server behind a proxy: a command and its arguments, or one URL."""
    if not words:
        raise InvalidInput("name the MCP server behind the proxy: treering proxy mcp -- COMMAND, or a URL")
    if len(words) == 1 and words[0].startswith(("http://", "https://")):
        return words[0]
    return StdioServerParameters(command=words[0], args=words[1:])


def _cursor(params: Any) -> str | None:
    return None if params is None else params.cursor


def _plain(result: types.CallToolResult) -> tuple[Any, bool]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True), result.is_error


def _restored(effect: Effect) -> types.CallToolResult:
    """Return the outcome of an earlier attempt as the result of a call, or the question about it."""
    found: Any = effect.result
    if effect.is_finished and isinstance(found, dict) and "content" in found:
        return types.CallToolResult.model_validate(found)
    text = str(effect.result) if effect.is_finished else effect.question
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        is_error=effect.is_error or not effect.is_finished,
    )


def _shown(upstream: Any) -> str:
    return upstream if isinstance(upstream, str) else getattr(upstream, "command", type(upstream).__name__)
