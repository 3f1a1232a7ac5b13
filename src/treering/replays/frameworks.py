"""The tool calls of frameworks, each caught at the one method that makes them.

==================  =======================================  ==================================
framework           method                                   left out
==================  =======================================  ==================================
LangChain           ``StructuredTool._run`` and ``_arun``    tools that are classes of their own
OpenAI Agents SDK   the invoker of ``function_tool``         hosted tools (the model runs them)
pydantic-ai         ``FunctionToolset.call_tool``            MCP servers
Claude Agent SDK    the handler of ``@tool``                 tools of the CLI, other MCP servers
==================  =======================================  ==================================

Tools that are left out are made for real in a replay. Google's SDK is told to use httpx, whose requests are
captured: its async client prefers aiohttp where that is installed. A framework is patched when it is imported
already, or when it is imported later, by `PatchOnImport`. What a tool returned is kept as JSON: a framework's
own objects come back as plain values.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, cast

import msgspec

from treering.runs.exchanges import intercept_tool

Replace = Callable[[Any, str, Callable[[Any], Any]], None]


def patch_tools(replace: Replace) -> Callable[[], None]:
    """Patch the frameworks that are imported, and each other one once it is; return what ends the latter."""
    for module in _PATCHES:
        if module in sys.modules:
            _PATCHES[module](sys.modules[module], replace)
    later = {name: each for name, each in _PATCHES.items() if name not in sys.modules}
    finder = PatchOnImport(later, replace)
    sys.meta_path.insert(0, finder)

    def undo() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return undo


class PatchOnImport(MetaPathFinder):
    """Patches a module right after it was executed."""

    def __init__(
        self, patches: Mapping[str, Callable[[ModuleType, Replace], None]], replace: Replace
    ) -> None:
        self._patches = dict(patches)
        self._replace = replace

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec that others find, with a loader that patches."""
        patch = self._patches.pop(fullname, None)
        if patch is None:
            return None
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader, lambda module: patch(module, self._replace))
        return spec


class _PatchingLoader(Loader):
    def __init__(self, inner: Loader, patch: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._patch(module)


def _patch_langchain(module: ModuleType, replace: Replace) -> None:
    def arguments_of(tool: Any) -> Callable[..., dict[str, Any]]:
        def arguments(*given: Any, **options: Any) -> dict[str, Any]:
            schema: Any = tool.tool_call_schema  # without what LangGraph injects
            names: Any = getattr(schema, "model_fields", None)
            if names is None:
                names = schema["properties"]
            named = {name: value for name, value in options.items() if name in names}
            return named | ({"_": list(given)} if given else {})

        return arguments

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(original):

            @functools.wraps(original)
            async def arun(self: Any, *given: Any, **options: Any) -> Any:
                if self.coroutine is None:  # it calls `_run`
                    return await original(self, *given, **options)

                async def call(*given: Any, **options: Any) -> Any:
                    return await original(self, *given, **options)

                return await intercept_tool(self.name, call, arguments_of(self))(*given, **options)

            return arun

        @functools.wraps(original)
        def run(self: Any, *given: Any, **options: Any) -> Any:
            call = functools.partial(original, self)
            return intercept_tool(self.name, call, arguments_of(self))(*given, **options)

        return run

    replace(module.StructuredTool, "_run", around)
    replace(module.StructuredTool, "_arun", around)


def _patch_openai_agents(module: ModuleType, replace: Replace) -> None:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def invoke(self: Any, context: Any, input: str) -> Any:
            async def call(input: str) -> Any:
                return await original(self, context, input)

            name = getattr(self._function_tool, "name", "tool")
            return await intercept_tool(name, call, _json_arguments)(input)

        return invoke

    replace(module._FailureHandlingFunctionToolInvoker, "__call__", around)  # noqa: SLF001 - no public one


def _patch_pydantic_ai(module: ModuleType, replace: Replace) -> None:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def call_tool(self: Any, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
            async def call(tool_args: dict[str, Any]) -> Any:
                return await original(self, name, tool_args, ctx, tool)

            return await intercept_tool(name, call, _same)(tool_args)

        return call_tool

    replace(module.FunctionToolset, "call_tool", around)


def _patch_claude(module: ModuleType, replace: Replace) -> None:
    class Handler:
        """The handler of a tool, which is read from the tool for each call."""

        def __get__(self, tool: Any, owner: Any = None) -> Any:
            if tool is None:
                return self
            handler = cast("Callable[..., Any]", vars(tool)["handler"])

            async def make(arguments: Any) -> Any:
                return await handler(arguments)

            return intercept_tool(tool.name, make, _same)

        def __set__(self, tool: Any, handler: Any) -> None:
            vars(tool)["handler"] = handler

    if "handler" not in vars(module.SdkMcpTool):
        module.SdkMcpTool.handler = None  # each tool has its own
    replace(module.SdkMcpTool, "handler", lambda _: Handler())


def _patch_google_genai(module: ModuleType, replace: Replace) -> None:
    def never(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def use_aiohttp(self: Any) -> bool:  # noqa: ARG001 - the client, which has both
            return False

        return use_aiohttp

    replace(module.BaseApiClient, "_use_aiohttp", never)


def _same(arguments: Any) -> Any:
    return arguments


def _json_arguments(input: str) -> Any:
    try:
        return msgspec.json.decode(input)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return input


_PATCHES: Final[dict[str, Callable[[ModuleType, Replace], None]]] = {
    "langchain_core.tools.structured": _patch_langchain,
    "agents.tool": _patch_openai_agents,
    "claude_agent_sdk": _patch_claude,
    "google.genai._api_client": _patch_google_genai,
    "pydantic_ai.toolsets.function": _patch_pydantic_ai,
}
