"""The OpenAPI document, from the endpoints' own types and words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from treering.server.endpoints import Endpoint
from treering.server.problems import MEDIA_TYPE, Problem

_REF: Final = "#/components/schemas/{name}"
_PART: Final = re.compile(r"\{(\w+)\}")


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """OpenAPI 3.1 for these endpoints."""
    kinds = list(dict.fromkeys(_kinds(endpoints)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "treering",
            "version": version,
            "description": "The persistence layer for AI agents. The project comes from the API key.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _kinds(endpoints: Iterable[Endpoint]) -> Iterable[Any]:
    yield Problem
    for each in endpoints:
        yield from (kind for kind in (each.query, each.body, each.reply) if kind is not None)


def _operation(each: Endpoint, schema_of: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = each.words.partition("\n")
    found: dict[str, Any] = {
        "operationId": each.name,
        "tags": [each.tag],
        "summary": summary,
        "description": f"{rest.strip()}\n\nNeeds scope `{each.scope}`.".strip(),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
              for name in _PART.findall(each.path)),
            *_parameters(each.query, schema_of, components),
        ],
        "responses": {
            str(each.status): _success(each, schema_of),
            "default": {
                "description": "What went wrong",
                "content": {MEDIA_TYPE: {"schema": schema_of[Problem]}},
            },
        },
    }  # fmt: skip
    if each.method == "GET" and each.reply is not None:
        found["responses"]["304"] = {"description": "Unchanged since the ETag in If-None-Match"}
    if each.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[each.body]}},
        }
    return found


def _success(each: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if each.reply is None:
        return {"description": "Done"}
    return {"description": "OK", "content": {"application/json": {"schema": schema_of[each.reply]}}}


def _parameters(
    query: Any, schema_of: dict[Any, Any], components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    if query is None:
        return
    schema: dict[str, Any] = schema_of[query]
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    for name, shape in schema.get("properties", {}).items():
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _given(shape),
        }


def _given(shape: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null; what may be null is simply left out."""
    if "anyOf" not in shape:
        return shape
    kinds = [each for each in shape["anyOf"] if each != {"type": "null"}]
    rest = {name: value for name, value in shape.items() if name != "anyOf" and value is not None}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}
