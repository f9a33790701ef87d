"""Builds the OpenAPI document from the table of routes and their structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.server.http.auth import PUBLIC
from octavo.server.http.route import Route
from octavo.server.server import VERSION

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "The Host or the Origin is not allowed.",
    "404": "There is no such model or route.",
    "405": "The route takes another method; `Allow` says which.",
    "408": "The head or the body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests wait; `Retry-After` says when to try again.",
    "431": "The head is too large.",
    "500": "The server failed on this request.",
    "503": "No request is served now; `Retry-After` says when to try again.",
    "504": "The deadline passed.",
}
_ERROR = {"$ref": _REFERENCE.format(name="Error")}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document of these routes."""
    kinds = list(dict.fromkeys(kind for route in routes for kind in _structs(route)))
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    for component in components.values():  # unknown fields are refused only in strict mode
        component.pop("additionalProperties", None)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR_SCHEMA},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _structs(route: Route) -> list[type[msgspec.Struct]]:
    return [kind for kind in (route.request, route.response, route.chunk) if kind is not None]


def _operation(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {route.kind: {}}
    if route.response is not None:
        content[route.kind] = {"schema": _reference(route.response)}
    if route.chunk is not None:
        content["text/event-stream"] = {"schema": _event(_reference(route.chunk))}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    error = {"application/json": {"schema": _ERROR}}
    for status, meaning in _ERRORS.items():
        responses[status] = {"description": meaning, "content": error}
    operation: dict[str, Any] = {"summary": route.summary, "responses": responses}
    if route.path in PUBLIC:
        operation["security"] = []
    if route.request is not None:
        body = {"application/json": {"schema": _reference(route.request)}}
        operation["requestBody"] = {"required": True, "content": body}
    if "{id}" in route.path:
        parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [parameter]
    return operation


def _event(chunk: dict[str, str]) -> dict[str, Any]:
    """Return the schema of a server-sent event: JSON in a string, or the end marker."""
    payload = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [chunk, _ERROR]},
    }
    data = {"anyOf": [{"const": "[DONE]"}, payload]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}
