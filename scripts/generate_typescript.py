"""Generate clients/typescript/src/api.ts from the server's OpenAPI document: its types and its operations.

The gateway and OTLP are left out: they are binary protocols, for which other clients exist.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from generate_rest_page import openapi

HEAD: Final = """// Generated from the server's OpenAPI document by scripts/generate.py. Do not edit.

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
"""
LEFT_OUT: Final = frozenset({"gateway", "otlp"})
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def api() -> str:
    document = openapi()
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if LEFT_OUT.isdisjoint(operation["tags"])
    ]
    schemas = document["components"]["schemas"]
    wanted = _reachable([_shapes(operation) for _, _, operation in operations], schemas)
    parts = [HEAD]
    parts += [_schema(name, schemas[name]) for name in sorted(wanted, key=_name)]
    parts += ["/** Every operation of the server, by its id. */", "export interface Operations {"]
    parts += [_operation(operation) for _, _, operation in operations]
    parts += ["}", "", "/** Method and path of every operation. */", "export const OPERATIONS = {"]
    parts += [
        f"  {operation['operationId']}: [{json.dumps(method)}, {json.dumps(path)}],"
        for method, path, operation in operations
    ]
    parts += ["} as const satisfies Record<keyof Operations, readonly [string, string]>;"]
    return "\n".join(parts) + "\n"


def _shapes(operation: dict[str, Any]) -> list[dict[str, Any]]:
    shapes = [each["schema"] for each in operation["parameters"]]
    holders = [*operation["responses"].values(), operation.get("requestBody", {})]
    return shapes + [each["schema"] for holder in holders for each in holder.get("content", {}).values()]


def _reachable(shapes: Any, schemas: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    waiting = [shapes]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(name := each.get("$ref"), str):
                name = name.rpartition("/")[2]
                if name not in found:
                    found.add(name)
                    waiting.append(schemas[name])
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


def _name(name: str) -> str:
    """Return the name of a type; two modules may have types of one name."""
    *module, last = name.split(".")
    return "".join(part.capitalize() for part in module[-1:]) + last


def _schema(name: str, schema: dict[str, Any]) -> str:
    said = _comment(schema.get("description", ""), "")
    if "properties" not in schema:
        return f"{said}export type {_name(name)} = {_type(schema)};\n"
    required = schema.get("required", ())
    fields = [
        f"  {_key(field)}{'' if field in required else '?'}: {_type(shape)};"
        for field, shape in schema["properties"].items()
    ]
    return f"{said}export interface {_name(name)} {{\n" + "\n".join(fields) + "\n}\n"


def _operation(operation: dict[str, Any]) -> str:
    path = [each for each in operation["parameters"] if each["in"] == "path"]
    query = [each for each in operation["parameters"] if each["in"] == "query"]
    body = operation.get("requestBody")
    done = next(reply for status, reply in operation["responses"].items() if status.startswith("2"))
    reply = _type(_json(done)) if "content" in done else "void"
    lines = [
        _comment(operation["summary"], "  ") + f"  {operation['operationId']}: {{",
        f"    path: {_given(path)};",
        f"    query: {_given(query)};",
        f"    body: {'undefined' if body is None else _type(_json(body))};",
        f"    reply: {reply};",
        f"    given: {{ {'; '.join(_parts(operation, path, query))} }};",
        "  };",
    ]
    return "\n".join(lines)


def _parts(operation: dict[str, Any], path: list[dict[str, Any]], query: list[dict[str, Any]]) -> list[str]:
    """Return what a call takes, spelled out: computed from the parts, it is too complex for the compiler."""
    name = operation["operationId"]
    body = operation.get("requestBody")
    parts = {"path": bool(path), "query": bool(query), "body": body is not None}
    is_needed = {
        "path": True,
        "query": any(each["required"] for each in query),
        "body": body is not None and body.get("required", True),
    }
    given = [
        f'{part}{"" if is_needed[part] else "?"}: Operations["{name}"]["{part}"]'
        for part, is_there in parts.items()
        if is_there
    ]
    return [*given, "signal?: AbortSignal | undefined"]


def _given(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return "Record<string, never>"
    lines = [
        f"{_comment(each['description'], '      ')}      "
        f"{_key(each['name'])}{'' if each['required'] else '?'}: {_type(each['schema'])};"
        for each in parameters
    ]
    return "{\n" + "\n".join(lines) + "\n    }"


def _json(holder: dict[str, Any]) -> dict[str, Any]:
    return next(iter(holder["content"].values()))["schema"]


def _type(shape: dict[str, Any]) -> str:
    if "$ref" in shape:
        return _name(shape["$ref"].rpartition("/")[2])
    if "anyOf" in shape:
        return " | ".join(dict.fromkeys(_type(each) for each in shape["anyOf"]))
    if "enum" in shape:
        return " | ".join(json.dumps(each) for each in shape["enum"])
    if "const" in shape:
        return json.dumps(shape["const"])
    match shape.get("type"):
        case "array" if "prefixItems" in shape:
            return f"[{', '.join(_type(each) for each in shape['prefixItems'])}]"
        case "array":
            inner = _type(shape.get("items") or {})
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        case "object":
            rest = shape.get("additionalProperties")
            return f"Record<string, {_type(rest) if isinstance(rest, dict) else 'Json'}>"
        case "integer" | "number":
            return "number"
        case "string" | "boolean" | "null" as plain:
            return plain
        case _:
            return "Json"


def _key(name: str) -> str:
    return name if _WORD.fullmatch(name) else json.dumps(name)


def _comment(text: str, indent: str) -> str:
    lines = [line.strip() for line in text.replace("*/", "* /").strip().splitlines()]
    if not lines:
        return ""
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    return (
        f"{indent}/**\n" + "".join(f"{indent} * {line}".rstrip() + "\n" for line in lines) + f"{indent} */\n"
    )
