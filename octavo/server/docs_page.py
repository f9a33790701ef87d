"""The OpenAPI document as one plain page: no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{background:#8882;padding:.1em .3em;border-radius:3px}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8884;"
    "padding:.2rem .5rem;text-align:left;vertical-align:top}:root{color-scheme:light dark}"
)


def page(document: Mapping[str, Any]) -> bytes:
    """HTML."""
    return "\n".join(_lines(document)).encode()


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style><h1>{title}</h1>"
    yield "<p>Send keys as <code>Authorization: Bearer KEY</code>. "
    yield "This page as data: <code>/openapi.json</code>.</p><h2>Routes</h2><table>"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody")
            reference = body["content"]["application/json"]["schema"] if body else {}
            yield f"<tr><td><code>{method.upper()} {escape(path)}</code>"
            yield f"<td>{escape(operation['summary'])}<td>{_kind(reference)}"
    yield "</table>"
    for name, schema in document["components"]["schemas"].items():
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3>'
        yield f"<p>{escape(schema.get('description', ''))}</p><table>"
        required = schema.get("required", ())
        for field, kind in schema.get("properties", {}).items():
            mark = " (required)" if field in required else ""
            default = kind.get("default")
            told = "" if default is None else f"<code>{escape(repr(default))}</code>"
            yield f"<tr><td><code>{escape(field)}</code>{mark}<td>{_kind(kind)}<td>{told}"
        yield "</table>"
    yield "</html>"


def _kind(schema: Mapping[str, Any]) -> str:
    """A type and its bounds, in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "anything")
    words = escape(" or ".join(kind) if isinstance(kind, list) else kind)
    if "items" in schema:
        words += f" of ({_kind(schema['items'])})"
    names = {
        "minimum": "≥",
        "exclusiveMinimum": "&gt;",
        "maximum": "≤",
        "minLength": "length ≥",
        "maxLength": "length ≤",
        "minItems": "items ≥",
        "maxItems": "items ≤",
    }
    bounds = [f"{word} {schema[key]}" for key, word in names.items() if key in schema]
    return f"{words} {', '.join(bounds)}" if bounds else words
