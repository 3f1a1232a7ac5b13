"""Tools: functions that a model may call.

A tool's parameters are taken from its function's signature. They become the JSON schema that the model
sees, and the model's arguments are validated and converted by the same types before the function is called.
A parameter of type `Context` is not part of the schema; it receives the run's context. Nor is one named
``idempotency_key``; it receives the key of the call, which is the same whenever the call is made again. Types
without a JSON schema accept any value and pass it on unchanged.

``replay`` says what happens to a call whose process died before its result was stored: see
`treering.effects`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints, overload

import msgspec

from treering.agent.messages import Context, ToolCall
from treering.approvals.policy import ApprovalPolicy, check_policy
from treering.effects.effects import Replay
from treering.errors import InvalidInput

Approval = bool | Callable[[dict[str, Any]], Any]
"""Whether a call needs a person's approval; a function (sync or async) decides by the arguments."""

Probe = TypeVar("Probe", bound=Callable[..., Any])

IDEMPOTENCY_KEY: Final = "idempotency_key"
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class Tool:
    """A function with the name, description and parameters that the model sees."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        needs_approval: Approval = False,
        approval: ApprovalPolicy | None = None,
        replay: Replay | None = None,
    ) -> None:
        if replay is not None and replay not in get_args(Replay):
            raise InvalidInput(f"replay={replay!r} is invalid; use {', '.join(get_args(Replay))}")
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.description = inspect.cleandoc(
            description if description is not None else function.__doc__ or ""
        )
        self.needs_approval: Approval = needs_approval or approval is not None
        self.approval = None if approval is None else check_policy(approval)
        self.replay: Replay = replay or "once"
        self.is_marked_once = replay in ("once", "ask")
        """Whether it was declared to have effects that must not be repeated, not even when a run is made
        again elsewhere (`treering.replays.rerun`)."""
        self.is_agent = False
        """Whether its calls run another agent, which is found again only if the call is stored first."""
        self._probe: Callable[..., Any] | None = None
        self._signature = _Signature.read(function, self.name)
        self.parameters: dict[str, Any] = (
            dict(parameters) if parameters is not None else self._signature.schema()
        )

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def as_openai(self) -> Any:
        """Return the tool's description for OpenAI's chat API."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    def as_anthropic(self) -> Any:
        """Return the tool's description for Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": self.parameters}

    @property
    def takes_key(self) -> bool:
        """Whether the function has a parameter ``idempotency_key``."""
        return self._signature.takes_key

    def probe(self, function: Probe) -> Probe:
        """Set the function that finds out whether a call happened whose process died; a decorator.

        It receives the arguments of the call (and its ``idempotency_key``, if it has that parameter) and
        returns an `Outcome`, or ``None`` if it cannot tell. It may be async.
        """
        self._probe = function
        return function

    def prober(self, context: Context) -> Callable[[ToolCall], Any] | None:
        """Return a function that probes a call; ``None`` if the tool has no probe."""
        if self._probe is None:
            return None
        return Tool(self._probe).caller(context)

    def bound(self, arguments: Mapping[str, Any], context: Context) -> dict[str, Any]:
        """Return the keyword arguments for the function; raise `InvalidInput` if they do not fit."""
        return self._signature.bound(arguments, context)

    def caller(self, context: Context) -> Callable[[ToolCall], Any]:
        """Return a function that makes a call of this tool; async if the tool is."""
        if inspect.iscoroutinefunction(self.function):

            async def call_async(call: ToolCall) -> Any:
                return await self.function(**self.bound(call.arguments, context))

            return call_async

        def call(call: ToolCall) -> Any:
            return self.function(**self.bound(call.arguments, context))

        return call


@overload
def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    needs_approval: Approval = False,
    approval: ApprovalPolicy | None = None,
    replay: Replay | None = None,
) -> Tool: ...


@overload
def tool(
    function: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    needs_approval: Approval = False,
    approval: ApprovalPolicy | None = None,
    replay: Replay | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    needs_approval: Approval = False,
    approval: ApprovalPolicy | None = None,
    replay: Replay | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a `Tool` from a function. A decorator, with or without arguments, or a plain call.

    ``approval`` says who may approve its calls, and until when (see `treering.approvals`); without
    ``needs_approval``, all of them need it.

    ``replay`` is for calls that were started and have no result, because the process died: ``"safe"`` makes
    them again; ``"once"``, the default, only if the function has a parameter ``idempotency_key``, else a
    person decides; with ``"ask"`` a person always does. A rerun of a recorded run never calls a tool that
    was given ``"once"`` or ``"ask"``.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(
            function,
            name=name,
            description=description,
            parameters=parameters,
            needs_approval=needs_approval,
            approval=approval,
            replay=replay,
        )

    return make if function is None else make(function)


def tools_by_name(tools: Iterable[Any]) -> dict[str, Tool]:
    """Return tools by name, made from functions and tools. Names must be unique."""
    box: dict[str, Tool] = {}
    for each in tools:
        if not isinstance(each, Tool) and not callable(each):
            raise InvalidInput(f"{each!r} is no tool; give a function or a Tool")
        one = each if isinstance(each, Tool) else Tool(each)
        if one.name in box:
            raise InvalidInput(f"two tools are named {one.name!r}; give one of them another name=")
        box[one.name] = one
    return box


def result_text(value: Any) -> str:
    """Return a tool's value as the text that the model reads: a string as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()


class _Signature:
    """A function's parameters, as a struct that has a schema and validates values."""

    def __init__(self, fields: list[Any], context: str | None, *, takes_more: bool, takes_key: bool) -> None:
        self.takes_key = takes_key
        self._names = [field[0] for field in fields]
        self._context = context
        self._takes_more = takes_more
        self._struct = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=not takes_more
        )

    @classmethod
    def read(cls, function: Callable[..., Any], tool_name: str) -> _Signature:
        context: str | None = None
        fields: list[Any] = []
        takes_more = takes_key = False
        hints = _hints(function)
        for each in _parameters(function, tool_name):
            kind = hints.get(each.name, Any)
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                takes_more = True
            elif each.kind in _POSITIONAL:
                raise InvalidInput(
                    f"tool {tool_name!r} has the positional-only parameter {each.name!r}; models "
                    "pass arguments by name"
                )
            elif each.name == IDEMPOTENCY_KEY:
                takes_key = True
            elif kind is Context or str(each.annotation).rpartition(".")[2] == Context.__name__:
                context = each.name
            else:
                fields.append(_field(each, kind))
        return cls(fields, context, takes_more=takes_more, takes_key=takes_key)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments, self-contained."""
        _, definitions = msgspec.json.schema_components([self._struct], ref_template="#/$defs/{name}")
        schema = dict(definitions.pop("Arguments"))
        schema.pop("title", None)
        if definitions:
            schema["$defs"] = definitions
        return schema

    def bound(self, arguments: Mapping[str, Any], context: Context) -> dict[str, Any]:
        try:
            checked = msgspec.convert(dict(arguments), self._struct, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the arguments do not fit: {error}") from None
        given = {name: getattr(checked, name) for name in self._names if name in arguments}
        if self._takes_more:
            given |= {name: value for name, value in arguments.items() if name not in self._names}
        if self._context is not None:
            given[self._context] = context
        if self.takes_key:
            given[IDEMPOTENCY_KEY] = context.idempotency_key
        return given


def _parameters(function: Callable[..., Any], tool_name: str) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except ValueError:
        raise InvalidInput(
            f"tool {tool_name!r} has no signature to read its parameters from; wrap it in a function"
        ) from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    plain = inspect.isfunction(function) or inspect.ismethod(function)
    try:
        return get_type_hints(function if plain else cast("Any", type(function)).__call__)
    except (NameError, TypeError):
        return {}  # names that exist for type checkers only: the schema has no types then


def _field(parameter: inspect.Parameter, kind: Any) -> tuple[Any, ...]:
    if not _has_schema(kind):
        kind = Any
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, kind)
    return (parameter.name, kind, msgspec.field(default_factory=lambda: parameter.default))


def _has_schema(kind: Any) -> bool:
    try:
        msgspec.json.schema(kind)
    except TypeError:
        return False
    return True
