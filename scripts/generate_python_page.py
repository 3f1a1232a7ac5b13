"""Generate docs/reference/python.md from the signatures and docstrings of the store and its views."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final, get_type_hints

from pages import HEAD

WIDTH: Final = 100

INTRO: Final = """# Python

`treering.open()` returns a `Store`, which gives access to everything else. `treering.open_async()` returns an
`AsyncStore` with the same API, awaited; properties that read from the store are methods there. The interfaces
of frameworks are described on the pages of the [adapters](../adapters/langgraph.md).
"""

MORE: Final = {"Thread": ("Checkpoint",), "Runs": ("Run", "Span")}
"""Classes that are documented after the class that returns them."""


def page() -> str:
    from treering.api import open as open_store
    from treering.api import open_async
    from treering.core.retention import Keep
    from treering.store import Store

    parts = [HEAD, INTRO, "## Opening", ""]
    for function in (open_store, open_async):
        parts += _entry("treering", function, "treering.")
    for one in (Store, *_views(Store), Keep):
        parts += _class(one)
    return "\n".join(parts).rstrip() + "\n"


def _views(store: type) -> list[type]:
    """Return the classes that the members of the store return, in order."""
    from treering.runs.run import Run
    from treering.runs.span import Span
    from treering.threads.checkpoint import Checkpoint

    nested = {"Checkpoint": Checkpoint, "Run": Run, "Span": Span}
    names = _checked_names(store)
    found: dict[str, type] = {}
    for member in vars(store).values():
        function = member.fget if isinstance(member, property) else member
        if not inspect.isfunction(function) or function.__name__.startswith("_"):
            continue
        given = get_type_hints(function, localns=names).get("return")
        if inspect.isclass(given) and given.__module__.startswith("treering."):
            if hasattr(given, "__struct_fields__"):
                continue
            found[given.__name__] = given
            for name in MORE.get(given.__name__, ()):
                found[name] = nested[name]
    return list(found.values())


def _checked_names(one: type) -> dict[str, Any]:
    """Return the names that the module of a class imports for type checkers only."""
    module = sys.modules[one.__module__]
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                if isinstance(each, ast.ImportFrom):
                    home = import_module(each.module or "")
                    found |= {name.asname or name.name: getattr(home, name.name) for name in each.names}
    return found


def _class(one: type) -> list[str]:
    lines = [f"## {one.__name__}", "", f"`{one.__module__}.{one.__name__}`", "", _words(one), ""]
    if hasattr(one, "__struct_fields__"):
        lines += [f"Fields: {', '.join(f'`{name}`' for name in one.__struct_fields__)}.", ""]
    for name, member in _members(one):
        lines += _entry(name, member, f"{one.__name__}.")
    return lines


def _members(one: type) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for each in one.__mro__:
        if not each.__module__.startswith("treering."):
            continue
        for name, member in vars(each).items():
            if name.startswith("_") or name in seen:
                continue
            plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if inspect.isfunction(plain) or isinstance(plain, property) or hasattr(plain, "func"):
                seen.add(name)
                yield name, plain


def _entry(name: str, member: Any, prefix: str) -> list[str]:
    if isinstance(member, property) or hasattr(member, "func"):
        function = member.fget if isinstance(member, property) else member.func
        if function is None:  # write-only
            return [f"### {prefix}{name}", "", _words(member), ""]
        returns = _source(function).returns
        signature = f"{name}: {ast.unparse(returns)}" if returns is not None else name
    else:
        function = member
        signature = _signature(function)
    return [f"### {prefix}{function.__name__}", "", "```py", signature, "```", "", _words(function), ""]


def _signature(function: Any) -> str:
    node = _source(function)
    node.args.args = [each for each in node.args.args if each.arg not in {"self", "cls"}]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    start = "async def " if isinstance(node, ast.AsyncFunctionDef) else ""
    whole = f"{start}{node.name}({ast.unparse(node.args)}){returns}"
    if len(whole) <= WIDTH:
        return whole
    given = _split(ast.unparse(node.args))
    inner = "".join(f"    {each},\n" for each in given)
    return f"{start}{node.name}(\n{inner}){returns}"


def _split(arguments: str) -> list[str]:
    """Arguments one by one: commas inside of brackets and quotes do not count."""
    parts, depth, quote, begin = [], 0, "", 0
    for place, sign in enumerate(arguments):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(arguments[begin:place].strip())
            begin = place + 1
    return [*parts, arguments[begin:].strip()]


def _source(function: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]


def _words(holder: Any) -> str:
    return inspect.cleandoc(holder.__doc__ or "")
