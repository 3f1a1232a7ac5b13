"""Generate docs/reference/rest.md from the server's OpenAPI document."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from pages import HEAD, cell, table

INTRO: Final = """# REST

Every route of [the server](../server.md) with its types. A running server returns the same as
`GET /openapi.json`. Errors are [problems](errors.md); ids in paths are percent-encoded.
"""


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of all routes."""
    import treering
    from treering.server.app import ROUTES
    from treering.server.endpoints import document

    modules = [import_module(f"treering.server.routes.{name}") for name in ROUTES]
    endpoints = [each for module in modules for each in getattr(module, "ENDPOINTS", ())]
    return document(endpoints, version=treering.__version__)


def page() -> str:
    result = openapi()
    schemas = result["components"]["schemas"]
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in result["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    parts = [HEAD, INTRO]
    for tag, operations in by_tag.items():
        parts += [f"## {tag.capitalize()}", ""]
        for method, path, operation in operations:
            parts += _operation(method, path, operation)
    parts += ["## Types", ""]
    for name in sorted(schemas):
        parts += _schema(name, schemas[name])
    return "\n".join(parts).rstrip() + "\n"


def _operation(method: str, path: str, result: dict[str, Any]) -> list[str]:
    lines = [f"### {method} {path}", "", result["summary"], "", result["description"], ""]
    given = [
        (
            f"`{each['name']}`",
            each["in"] + (", required" if each["required"] and each["in"] != "path" else ""),
            _type(each["schema"]),
            _default(each["schema"]),
            cell(each["description"]),
        )
        for each in result["parameters"]
    ]
    lines += [*table(("parameter", "in", "type", "default", "meaning"), given), ""] if given else []
    if (body := result.get("requestBody")) is not None:
        lines += [f"Body: {_type(_json(body))}", ""]
    for status, reply in result["responses"].items():
        if status.startswith("2"):
            lines += [f"Reply, {status}: {_type(_json(reply)) if 'content' in reply else 'nothing'}", ""]
    return lines


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name.rpartition('.')[2]} {{ #{_anchor(name)} }}", ""]
    if schema.get("description"):
        lines += [schema["description"].strip(), ""]
    required = schema.get("required", ())
    fields = [
        (f"`{field}`", _type(shape), "required" if field in required else _default(shape))
        for field, shape in schema.get("properties", {}).items()
    ]
    lines += [*table(("field", "type", "default"), fields), ""] if fields else []
    if "enum" in schema:
        lines += [f"One of {', '.join(f'`{each}`' for each in schema['enum'])}.", ""]
    return lines


def _anchor(name: str) -> str:
    """Return the anchor of a type: its qualified name, because two modules may have types of one name."""
    return "type-" + name.lower().replace(".", "-").replace("_", "-")


def _json(holder: dict[str, Any]) -> dict[str, Any]:
    return next(iter(holder["content"].values()))["schema"]


def _type(shape: dict[str, Any]) -> str:
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        return f"[{name.rpartition('.')[2]}](#{_anchor(name)})"
    if "anyOf" in shape:
        return " or ".join(dict.fromkeys(_type(each) for each in shape["anyOf"]))
    if "enum" in shape:
        return " or ".join(f"`{each}`" for each in shape["enum"])
    kind = shape.get("type")
    if kind == "array":
        return f"list of {_type(shape.get('items') or {})}"
    if kind == "object" and isinstance(shape.get("additionalProperties"), dict):
        return f"object of {_type(shape['additionalProperties'])}"
    return cell(kind or "anything")


def _default(shape: dict[str, Any]) -> str:
    value = shape.get("default")
    return "" if value in (None, "", [], {}) else f"`{value}`"
