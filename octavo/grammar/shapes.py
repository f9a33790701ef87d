"""The translation of a shape into the grammar text that the grammar engine compiles.

Grammars are in Lark's syntax as llguidance understands it, without its line of options. A client's
text never becomes an option of the compiler: options that a schema carries are replaced.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.llguidance_engine import first_line, problems

MAX_DEPTH = 64  # of a schema
GBNF_HEADER = "%llguidance {}\n"  # of converted grammars


def grammar_of(shape: StructuredOutputsParams) -> str:
    """Return the grammar of a shape; raise ShapeError with the field that is wrong."""
    name, text = _grammar_text(shape)
    is_wrong, messages = problems(text)
    if is_wrong or messages:
        raise ShapeError(f"{name} cannot be used: {'; '.join(messages)}", name)
    return text


def _grammar_text(shape: StructuredOutputsParams) -> tuple[str, str]:
    """Return the name of the shape's field, and the grammar in Lark's syntax."""
    if shape.json is not None:
        assert isinstance(shape.json, str), "shapes are stored as text"
        return "json", _of_schema(_parsed("json", shape.json), shape)
    if shape.json_object:
        return "json_object", _of_schema({"type": "object"}, shape)
    if shape.regex is not None:
        return "regex", f"start: /{regex_to_lark(shape.regex)}/"
    if shape.choice is not None:
        alternatives = " | ".join(json.dumps(each, ensure_ascii=False) for each in shape.choice)
        return "choice", f"start: {alternatives}"
    if shape.grammar is not None:
        return "grammar", _lark(shape.grammar)
    raise ShapeError("structural tags are not supported yet", "structural_tag")


def _parsed(name: str, text: str) -> Any:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"{name} is not JSON: {error}", name) from None
    if not isinstance(parsed, dict | bool):
        raise ShapeError(f"{name} is a {type(parsed).__name__}; a schema is an object", name)
    return parsed


def _of_schema(schema: Any, shape: StructuredOutputsParams) -> str:
    _walk(schema, 0, closes=shape.disable_additional_properties)
    options = {
        "whitespace_flexible": not shape.disable_any_whitespace,
        "whitespace_pattern": shape.whitespace_pattern,
        "lenient": False,
    }
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": options}
    return f"start: %json {json.dumps(schema)}"


def _walk(schema: Any, depth: int, *, closes: bool) -> None:
    """Check the depth of a schema; with `closes`, allow no properties beside the listed ones."""
    if depth > MAX_DEPTH:
        raise ShapeError(f"json is nested more than {MAX_DEPTH} deep", "json")
    if isinstance(schema, dict):
        if closes and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _walk(value, depth + 1, closes=closes)
    elif isinstance(schema, list):
        for value in schema:
            _walk(value, depth + 1, closes=closes)


def _lark(text: str) -> str:
    """Return a grammar in Lark's syntax; llama.cpp's is recognised by its `::=`."""
    if "::=" in text:
        try:
            text = gbnf_to_lark(text)
        except Exception as error:  # its parser raises whatever it meets
            raise ShapeError(f"grammar is not GBNF: {first_line(str(error))}", "grammar") from None
        return text.removeprefix(GBNF_HEADER)
    if "%llguidance" in text:
        raise ShapeError(
            "grammar has a line of options (%llguidance), which are the server's; leave it out",
            "grammar",
        )
    return text
