"""Which types of a program a saver stores and builds again: those that its graphs name.

LangGraph's serializer writes a Pydantic model, a dataclass or an enum as the name of its class and the data
that it holds. Building any class that stored bytes name would let whoever can write to the store choose what
runs, so only known classes are built: LangGraph's own safe list, what ``allow`` names, and the classes that
the graphs of this saver name themselves. A graph names a class in its schemas (and in the fields of what
they name), in the annotations of its nodes and edges, and in their code: a node that says
``Send("pay", Order(1))`` names ``Order``. Subclasses of a named class are known as well.

LangGraph does not tell a checkpointer which graphs it is compiled into, so the constructor of its `Pregel`
keeps a weak reference to each one. They are searched only when a type turns up that is not known yet.

**Invariant:** no module is imported because stored bytes name it, and a type is refused when it is stored,
not when it is read: what was stored can be built by the same graph in another process.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import typing
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from pathlib import PurePath
from threading import RLock
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast
from uuid import UUID
from weakref import WeakSet

import ormsgpack
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.channels.base import BaseChannel  # pyright: ignore[reportMissingTypeStubs]
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde import _msgpack as safe_list
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]
from pydantic import BaseModel, SecretBytes, SecretStr
from typing_extensions import is_typeddict

from treering.errors import InvalidInput, Unencodable

TypeName = tuple[str, str]
"""The module and the name of a class, as LangGraph's serializer writes them."""

_POSITIONAL: Final = 1
_KEYWORDS: Final = 2
_METHOD: Final = 3
_PYDANTIC: Final = (4, 5)
_ARRAY: Final = 6
_DELTA: Final = 7
_DATA: Final = (Enum, SecretStr, SecretBytes, UUID, Decimal, PurePath, date, set, frozenset, deque)
_ROOTS: Final = frozenset({BaseModel, object, *_DATA})
"""Naming one of these names none of its subclasses."""
_MOST_OBJECTS: Final = 20_000
"""How many functions, tools and annotations of one graph are looked at."""

_graphs: Final[WeakSet[Any]] = WeakSet()
_lock: Final = RLock()
_is_watching = False


def watch_graphs() -> None:
    """Keep a weak reference to every graph that is made from now on."""
    global _is_watching  # noqa: PLW0603
    with _lock:
        if not _is_watching:
            graph_class = cast("Any", Pregel)
            graph_class.__init__ = _remembering(graph_class.__init__)
            _is_watching = True


def _remembering(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def make_and_remember(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        with _lock:
            _graphs.add(self)

    return make_and_remember


class KnownTypes:
    """The classes that one saver may build."""

    def __init__(self, allowed: Iterable[type | TypeName] = ()) -> None:
        self.saver: Callable[[], object] = lambda: None
        """Returns the saver, to tell which graphs are its own."""
        self._classes: dict[TypeName, Any] = {}
        self._imports: set[TypeName] = set()
        self._searched: WeakSet[Any] = WeakSet()
        self.allow(allowed)

    def allow(self, allowed: Iterable[type | tuple[str, ...]]) -> None:
        """Add classes, or the names of classes to import when they are needed."""
        for each in allowed:
            if isinstance(each, type):
                self._classes[each.__module__, each.__name__] = each
            else:
                module, name = each
                self._imports.add((module, name))

    def find(self, module: str, name: str) -> Any:
        """Return what builds a value of this type; ``None`` if it is not known."""
        key = (module, name)
        found = self._classes.get(key)
        if found is not None and _is_importable(found, key):
            return found
        if key in self._imports or key in safe_list.SAFE_MSGPACK_TYPES:
            found = self._classes[key] = getattr(importlib.import_module(module), name)
            return found
        with _lock:
            self._search()
            found = self._classes.get(key)
            if found is None:
                found = self._subclass(key)
        return found

    def _search(self) -> None:
        """Collect the classes of the graphs that were made since the last time."""
        saver = self.saver()
        for graph in [each for each in _graphs if each not in self._searched]:
            lent = not isinstance(graph.checkpointer, BaseCheckpointSaver)  # a subgraph uses its parent's
            if lent or graph.checkpointer is saver:
                self._searched.add(graph)
                self.allow(_Search().types_of(graph))

    def _subclass(self, key: TypeName) -> Any:
        module, name = key
        found = getattr(sys.modules.get(module), name, None)
        if not isinstance(found, type) or not _is_data(found):
            return None
        if not any(base in self._classes.values() for base in found.__mro__ if base not in _ROOTS):
            return None
        self._classes[key] = found
        return found


class ClosedSerializer(JsonPlusSerializer):
    """LangGraph's serializer for a closed list of types.

    Storing a type outside of it raises `Unencodable`, loading one `InvalidInput`. With ``keep_unknown`` (for
    imports, which know no graph) such a value is loaded as an opaque one that is stored again as it was.
    """

    def __init__(self, types: KnownTypes, *, keep_unknown: bool = False) -> None:
        super().__init__(pickle_fallback=False, allowed_msgpack_modules=None)
        self.types = types
        self._keep_unknown = keep_unknown

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode a value whose types are all known."""
        form, data = super().dumps_typed(obj)
        if form == "msgpack" and not self._keep_unknown:
            refused: list[TypeName] = []
            _unpack(data, partial(self._check, refused))
            if refused:
                raise Unencodable(_refusal(*refused[0]))
        return form, data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decode a value."""
        if data[0] != "msgpack":
            return super().loads_typed(data)
        problems: list[str] = []  # msgpack drops what a hook raises
        value = _unpack(data[1], partial(self._build, problems))
        if problems:
            raise InvalidInput(problems[0])
        return value

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> ClosedSerializer:
        """Add to the types that are known; LangGraph calls this in its strict mode."""
        self.types.allow(extra_allowlist)
        return self

    def _check(self, refused: list[TypeName], code: int, data: bytes) -> None:
        if code == _ARRAY:
            return
        found = _unpack(data, partial(self._check, refused))
        if code != _DELTA and self.types.find(found[0], found[1]) is None:
            refused.append((found[0], found[1]))

    def _build(self, problems: list[str], code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return _build_array(code, data)
        found = _unpack(data, partial(self._build, problems))
        if code == _DELTA:
            return _DeltaSnapshot(found)
        module, name, given, *more = found
        cls = self.types.find(module, name)
        if cls is None:
            if self._keep_unknown:
                return ormsgpack.Ext(code, data)
            problems.append(_unknown(module, name))
            return None
        try:
            return _construct(code, cls, given, *more)
        except Exception as error:  # noqa: BLE001 - whatever a class of the user's own raises
            problems.append(
                f"a stored {module}.{name} cannot be built: {type(error).__name__}: {error}. Give new fields "
                "a default, and keep the values of an enum that are stored"
            )
            return None


def _construct(code: int, cls: Any, given: Any, *more: Any) -> Any:
    if code == _POSITIONAL:
        if cls.__name__ == "Send" and len(given) > 2:  # noqa: PLR2004 - the third is its timeout
            return cls(*given[:2], timeout=given[2])
        return cls(*given)
    if code == _KEYWORDS:
        return cls(**given)
    if code == _METHOD:
        if more != ("fromisoformat",):
            raise ValueError(f"it names the method {more}")
        return cls.fromisoformat(given)
    if code in _PYDANTIC:
        try:
            return cls(**given)
        except Exception:  # noqa: BLE001 - what the validators of the user's own model raise
            return cls.model_construct(**given) if hasattr(cls, "model_construct") else cls.construct(**given)
    return cls(given)


_build_array: Final[Any] = cast("Any", JsonPlusSerializer())._unpack_ext_hook  # noqa: SLF001 - it names no type


def _unpack(data: bytes, hook: Callable[[int, bytes], Any]) -> Any:
    return ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)


def _refusal(module: str, name: str) -> str:
    return (
        f"cannot store a value of type {module}.{name}: no schema, annotation or node of the graph names it, "
        f"so it could not be built again. Annotate the channel with it, or allow it: {_line(module, name)}"
    )


def _unknown(module: str, name: str) -> str:
    return (
        f"a stored value is of type {module}.{name}, which no graph of this saver names. Compile the saver "
        f"into the graph before you read, or allow the type: {_line(module, name)}"
    )


def _line(module: str, name: str) -> str:
    return f"TreeringSaver(..., allow=[({module!r}, {name!r})])"


def _is_importable(found: Any, key: TypeName) -> bool:
    """Whether a class is what its name says; one that was made in a function is made anew at each call."""
    return key in safe_list.SAFE_MSGPACK_TYPES or getattr(sys.modules.get(key[0]), key[1], None) is found


def _is_data(cls: Any) -> bool:
    """Whether LangGraph's serializer writes instances of a class by its name."""
    if cls is BaseModel or cls is Enum:
        return False
    if dataclasses.is_dataclass(cls) or issubclass(cls, (BaseModel, *_DATA)):
        return True
    return hasattr(cls, "_fields") or hasattr(cls, "__fields__")  # named tuples, and Pydantic's first version


class _Search:
    """Looks for the classes that one graph names."""

    def __init__(self) -> None:
        self._found: set[type] = set()
        self._seen: set[int] = set()
        self._alive: list[Any] = []
        """What was looked at: an id means nothing once its object is gone."""
        self._waiting: deque[Any] = deque()

    def types_of(self, graph: Any) -> Collection[type]:
        """Return the classes that a graph names."""
        self._waiting.append(graph)
        while self._waiting and len(self._alive) < _MOST_OBJECTS:
            each = self._waiting.popleft()
            if id(each) in self._seen:
                continue
            self._seen.add(id(each))
            self._alive.append(each)
            self._waiting.extend(self._named_by(each))
        return self._found

    def _named_by(self, each: Any) -> Iterable[Any]:
        if isinstance(each, Pregel):
            return _parts_of_graph(cast("Any", each))
        if isinstance(each, FunctionType):
            return _names_in_function(each)
        if isinstance(each, MethodType):
            return [each.__func__, *_used_attributes(each)]
        if isinstance(each, partial):
            part = cast("partial[Any]", each)
            return [part.func, *part.args, *part.keywords.values()]
        if isinstance(each, type):
            return self._class(each)
        if isinstance(each, (list, tuple, set, frozenset)):
            return cast("Iterable[Any]", each)
        if isinstance(each, Mapping):
            return cast("Mapping[Any, Any]", each).values()
        if isinstance(each, BaseChannel):
            channel = cast("Any", each)
            return [getattr(channel, "ValueType", None), getattr(channel, "UpdateType", None)]
        if isinstance(each, (Runnable, BaseTool)) or hasattr(each, "func"):
            return _parts_of_runnable(each)
        if typing.get_origin(each) is not None or hasattr(each, "__supertype__"):
            return _parts_of_annotation(each)
        if isinstance(each, typing.TypeVar):
            return [each.__bound__, *each.__constraints__]
        if dataclasses.is_dataclass(each):
            return [getattr(each, field.name, None) for field in dataclasses.fields(each)]
        if hasattr(each, "__value__"):  # type Order = ...
            return [each.__value__]
        return ()

    def _class(self, cls: type) -> Iterable[Any]:
        if is_typeddict(cls):
            return _hints(cls).values()
        if typing.get_origin(cls) is not None:
            return _parts_of_annotation(cls)
        if not _is_data(cls):
            return ()
        self._found.add(cls)
        if issubclass(cls, Enum):
            return ()
        return [*_hints(cls).values(), *_field_types(cls)]


def _parts_of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.channels.values()
    for node in graph.nodes.values():
        yield node.bound
        yield from node.writers
    builder = getattr(graph, "builder", None)
    if builder is None:
        return
    yield from builder.schemas
    yield from (builder.state_schema, builder.input_schema, builder.output_schema)
    for node in builder.nodes.values():
        yield from (node.input_schema, node.runnable)
    for branches in builder.branches.values():
        for branch in branches.values():
            yield from (branch.path, branch.input_schema)


def _parts_of_runnable(runnable: Any) -> Iterator[Any]:
    for name in ("func", "afunc", "coroutine", "bound", "steps", "steps__", "tools_by_name", "mapper"):
        yield getattr(runnable, name, None)
    for name in ("args_schema", "_run", "invoke", "ainvoke"):
        found = getattr(runnable, name, None)
        module = getattr(found, "__module__", "") or ""
        if found is not None and not module.startswith(("langchain", "langgraph")):
            yield found


def _parts_of_annotation(annotation: Any) -> Iterator[Any]:
    yield from (each for each in typing.get_args(annotation) if not isinstance(each, str))
    origin = typing.get_origin(annotation)
    if isinstance(origin, type):
        yield origin
    yield getattr(annotation, "__supertype__", None)


def _field_types(cls: Any) -> list[Any]:
    """The types of a model's fields, which Pydantic knows where names in a function cannot be looked up."""
    fields = cast("dict[str, Any]", getattr(cls, "model_fields", {}))
    return [field.annotation for field in fields.values()]


def _hints(thing: Any, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The annotations of a class or function that can be evaluated."""
    try:
        return typing.get_type_hints(thing, localns=dict(names or {}), include_extras=True)
    except Exception:  # noqa: BLE001, S110 - a name that is known to the type checker only
        pass
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    scope = {**(vars(module) if module else {}), **(names or {})}
    hints: dict[str, Any] = {}
    for name, hint in inspect.get_annotations(thing).items():
        try:
            hints[name] = eval(hint, scope) if isinstance(hint, str) else hint  # noqa: S307 - the program's own
        except Exception:  # noqa: BLE001, S112 - the others may be known
            continue
    return hints


def _names_in_function(function: FunctionType) -> Iterator[Any]:
    """What a function names: its annotations, what is in its closure, and globals that its code uses."""
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped
    cells: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from cells.values()
    yield from _hints(function, cells).values()
    names = _names_in_code(function.__code__)
    package = _package(function.__module__)
    for name in names:
        found = function.__globals__.get(name)
        if isinstance(found, ModuleType):
            yield from (
                each for each in (vars(found).get(other) for other in names) if isinstance(each, type)
            )
        elif isinstance(found, FunctionType) and _package(found.__module__) != package:
            yield from _hints(found).values()
        elif not isinstance(found, (list, tuple, set, frozenset, Mapping)):
            yield found


def _names_in_code(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            names |= _names_in_code(each)
    return names


def _used_attributes(method: MethodType) -> Iterator[Any]:
    """The attributes of an object that its method names."""
    for name in _names_in_code(cast("Any", method.__func__).__code__):
        try:
            yield inspect.getattr_static(method.__self__, name)
        except AttributeError:
            continue


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]
