"""docs/api.md against the code: every route, every field with its bounds, and what is refused.

`python -m tests.tidy.api_page --write` brings the page up to date.
"""

import sys
from collections.abc import Iterator
from typing import Any

from octavo.dialects.common.schema.unsupported import IGNORED, UNSUPPORTED
from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from tests.tidy import vllm_fields
from tests.tidy.source import ROOT

PAGE = ROOT / "docs" / "api.md"
BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"
_INNER = (
    *("Message", "PastCall", "PastFunction", "ContentPart", "StreamOptions"),
    "TokenSampling",
    *("Tool", "FunctionTool", "ToolChoice", "AllowedTools", "NamedTool", "NamedFunction"),
)
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "minLength": "length ≥",
    "maxLength": "length ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
    "maxProperties": "entries ≤",
}


def generated() -> str:
    """Return the text between the page's marks."""
    return "\n".join(_lines())


def page(text: str) -> str:
    """Return the page with its generated part brought up to date."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{generated()}\n\n{END}{after}"


def _lines() -> Iterator[str]:
    schemas = document(ROUTES, DEFAULT_DIALECT)["components"]["schemas"]
    yield "## Routes"
    yield ""
    yield "| route | what it does | streams |"
    yield "| --- | --- | --- |"
    for route in ROUTES:
        streams = "yes" if route.chunk else ""
        yield f"| `{route.method} {route.path}` | {route.summary} | {streams} |"
    paths: dict[str, list[str]] = {}  # by the request's struct
    for route in ROUTES:
        if route.request is not None:
            paths.setdefault(route.request.__name__, []).append(f"`{route.path}`")
    for name, where in paths.items():
        yield from _fields(" and ".join(where), schemas[name])
    for name in _INNER:
        yield from _fields(f"a `{name}`", schemas[name])
    yield ""
    yield "## The fields of vLLM"
    yield ""
    yield from vllm_fields.table()
    yield ""
    yield "## Refused by name, unless they ask for nothing"
    yield ""
    yield "| field | taken when | otherwise |"
    yield "| --- | --- | --- |"
    for name, rule in UNSUPPORTED.items():
        yield f"| `{name}` | null or `{rule.harmless}` | {rule.refusal} |"
    yield ""
    yield "## Taken, without effect"
    yield ""
    yield "| field | because |"
    yield "| --- | --- |"
    for name, reason in IGNORED.items():
        yield f"| `{name}` | {reason} |"


def _fields(what: str, schema: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## Fields of {what}"
    yield ""
    yield "| field | type and bounds | default |"
    yield "| --- | --- | --- |"
    for name, kind in schema["properties"].items():
        required = name in schema.get("required", ())
        default = "required" if required else f"`{_json(kind.get('default'))}`"
        yield f"| `{name}` | {_kind(kind)} | {default} |"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"{schema['$ref'].rpartition('/')[2]}"
    if "anyOf" in schema:
        kinds = [_kind(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in schema:
        return " or ".join(f"`{_json(value)}`" for value in schema["enum"] if value is not None)
    words = schema.get("type", "anything")
    if "items" in schema:
        words += f" of ({_kind(schema['items'])})"
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
    return f"{words}, {', '.join(bounds)}" if bounds else words


def _json(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    if isinstance(value, str):
        return f'"{value}"'
    return words[value] if value is None or isinstance(value, bool) else str(value)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.tidy.api_page --write")
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
