"""Builds the OpenAPI document from the table of routes and their structs."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import msgspec

from octavo.serving.server import VERSION
from octavo.transport.auth import PUBLIC, is_public
from octavo.transport.dialect import Dialect
from octavo.transport.route import Route

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "The Host or the Origin is not allowed.",
    "404": "There is no such model or route.",
    "405": "The route takes another method; `Allow` says which.",
    "408": "The head or the body did not arrive in time.",
    "409": "The id belongs to another request, or what is asked for contradicts another request.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests wait; `Retry-After` says when to try again.",
    "431": "The head is too large.",
    "500": "The server failed on this request.",
    "503": "No request is served now; `Retry-After` says when to try again.",
    "504": "The deadline passed.",
}


def document(
    routes: Sequence[Route],
    default: Dialect,
    *,
    needs_key: bool = False,
    public: Container[str] = PUBLIC,
    root_path: str = "",
) -> dict[str, Any]:
    """Return the document of these routes; `default` is the dialect of those without one.

    If requests need a key, `public` paths are excepted. `root_path` is the proxy's prefix.
    """
    kinds = list(dict.fromkeys(kind for route in routes for kind in _structs(route)))
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    for component in components.values():  # unknown fields are refused only in strict mode
        component.pop("additionalProperties", None)
    for kind in kinds:  # what the types do not express
        components[kind.__name__].update(getattr(kind, "schema", {}))
    errors: dict[str, dict[str, Any]] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        dialect = route.dialect or default
        errors[dialect.error_name] = dialect.error_schema
        operation = _operation(route, dialect)
        if is_public(route.path, route.method, public):
            operation["security"] = []
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": VERSION},
        "paths": paths,
        "components": {"schemas": {**components, **errors}},
    }
    if needs_key:
        scheme = {"key": {"type": "http", "scheme": "bearer"}}
        whole["components"]["securitySchemes"] = scheme
        whole["security"] = [{"key": []}]
    if root_path:
        whole["servers"] = [{"url": root_path}]
    return whole


def _structs(route: Route) -> list[type[msgspec.Struct]]:
    return [kind for kind in (route.request, route.response, route.chunk) if kind is not None]


def _operation(route: Route, dialect: Dialect) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {} for kind in (route.kind, *route.other_kinds)}
    if route.response is not None:
        schema: dict[str, Any] = _reference(route.response)
        if route.may_list:
            schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
        content[route.kind] = {"schema": schema}
    if route.chunk is not None:
        kind = dialect.stream_kind.partition(";")[0]
        payload = {"anyOf": [_reference(route.chunk), _named(dialect.error_name)]}
        content[kind] = {"schema": dialect.stream_schema(payload)}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    error = {"application/json": {"schema": _named(dialect.error_name)}}
    for status, meaning in _ERRORS.items():
        responses[status] = {"description": meaning, "content": error}
    operation: dict[str, Any] = {"summary": route.summary, "responses": responses}
    if route.request is not None:
        body = {route.request_kind: {"schema": _reference(route.request)}}
        operation["requestBody"] = {"required": True, "content": body}
    text = {"type": "string"}
    parameters: list[dict[str, Any]] = []
    if "{id}" in route.path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": text})
    for name, meaning in route.query:
        parameters.append({"name": name, "in": "query", "description": meaning, "schema": text})
    if parameters:
        operation["parameters"] = parameters
    return operation


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return _named(kind.__name__)


def _named(name: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=name)}
