"""The translation of a shape into the grammar text that the grammar engine compiles.

Grammars are in Lark's syntax as llguidance understands it, without its line of options. A client's
text never becomes an option of the compiler: options that a schema carries are replaced.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar import gbnf, lark
from octavo.grammar.json_place import PREFIX, WHITESPACE
from octavo.grammar.json_schema.blame import compilable
from octavo.grammar.json_schema.simplify import simplified
from octavo.grammar.protocol import DRAWN, GrammarError
from octavo.grammar.regexes import RegexError, all_translated, literal
from octavo.grammar.structural_tags import tags_grammar
from octavo.grammar.trial import try_grammar

_TOKEN_ID = re.compile(r"<\[")
# A translated regex of nothing but JSON's whitespace: characters, classes, groups and quantifiers.
_BLANK = re.compile(
    r"(?:\\x(?:20|09|0A|0D)|\[(?:\\x(?:20|09|0A|0D))+\]|\(\?:|[()|*+?]|\{\d+(?:,\d*)?\})*"
)


class Translated(NamedTuple):
    """The grammar of a shape, and what of the shape it does not enforce."""

    text: str
    warnings: list[tuple[str, str]]  # the place, and what is not done


def grammar_of(shape: StructuredOutputsParams, vocabulary: int = 0) -> Translated:
    """Return the grammar of a shape, which compiles; raise ShapeError with what is wrong.

    `vocabulary` is the number of token ids, which a grammar may name.
    """
    warnings: list[tuple[str, str]] = []
    name, text = _grammar_text(shape, warnings)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ShapeError(f"it contains half of a character (U+{code:04X})", name) from None
    try:
        try_grammar(text, vocabulary if _TOKEN_ID.search(text) else 0)
    except GrammarError as error:
        if name == "json":
            return _with_less(shape)
        is_own = name == "grammar" and error.line is not None and not _is_gbnf(shape)
        what = str(error)
        if is_own:
            what = (
                f"line {error.line}: {error}; it was read as Lark's syntax, since it has no '::='"
            )
        raise ShapeError(what, name) from None
    return Translated(text, warnings)


def _with_less(shape: StructuredOutputsParams) -> Translated:
    """Return the grammar of a schema that does not compile as a whole, if it may be less.

    Else raise ShapeError with the keyword at fault.
    """
    assert isinstance(shape.json, str), "shapes are stored as text"
    made = compilable(
        parsed(shape.json, "json"),
        "json",
        lambda core: try_grammar(f"{PREFIX}{_with_options(core, shape)}", 0),
        path="",
        strict=shape.strict,
        closes=shape.disable_additional_properties,
    )
    return Translated(f"{PREFIX}{_with_options(made.core, shape)}", made.warnings)


def _grammar_text(
    shape: StructuredOutputsParams, warnings: list[tuple[str, str]]
) -> tuple[str, str]:
    """Return the name of the shape's field, and the grammar in Lark's syntax."""

    def schema_text(schema: Any, path: str, field: str = "json") -> str:
        closes = shape.disable_additional_properties
        result = simplified(schema, field, path=path, strict=shape.strict, closes=closes)
        warnings.extend(result.warnings)
        return _with_options(result.core, shape)

    if shape.json is not None:
        assert isinstance(shape.json, str), "shapes are stored as text"
        return "json", f"{PREFIX}{schema_text(parsed(shape.json, 'json'), '')}"
    if shape.json_object:
        return "json_object", f"{PREFIX}{schema_text({'type': 'object'}, '')}"
    if shape.regex is not None:
        parts = _regexes(shape.regex, "regex", is_single=False)
        first, *others = (f"/{part}/" for part in parts)
        if not others:
            return "regex", f"start: {first}"
        return "regex", f"start: TEXT\nTEXT: {' & '.join((first, *others))}"
    if shape.choice is not None:
        return "choice", f"start: /{'|'.join(map(literal, shape.choice))}/"
    if shape.grammar is not None:
        if _is_gbnf(shape):
            return "grammar", f"{_of_gbnf(shape.grammar)}\n{DRAWN}\n"
        inner = lark.checked(
            shape.grammar, "grammar", lambda schema, path: schema_text(schema, path, "grammar")
        )
        return "grammar", f"{inner}\n{DRAWN}\n"
    assert isinstance(shape.structural_tag, str), "shapes are stored as text"
    tags = parsed(shape.structural_tag, "structural_tag")
    return "structural_tag", tags_grammar(
        tags, lambda schema, path: schema_text(schema, path, "structural_tag")
    )


def _is_gbnf(shape: StructuredOutputsParams) -> bool:
    return shape.grammar is not None and "::=" in shape.grammar


def parsed(text: str, field: str) -> Any:
    """Return the value of JSON text in which no name repeats."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ShapeError(f"the name {twice[:64]!r} is given twice in one object", field)
        return made

    def refuse(name: str) -> None:
        raise ShapeError(f"{name} is no JSON", field)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except ShapeError:
        raise
    except RecursionError:
        raise ShapeError("it is nested too deep", field) from None
    except ValueError as error:
        raise ShapeError(f"it is not JSON: {error}", field) from None
    if not isinstance(value, dict | bool):
        raise ShapeError(f"a {type(value).__name__} was given; it must be an object", field)
    return value


def _with_options(core: Any, shape: StructuredOutputsParams) -> str:
    """Return a core as JSON text, with the options of the engine's compiler."""
    whitespace = WHITESPACE
    if shape.whitespace_pattern is not None:
        whitespace = _whitespace(shape.whitespace_pattern)
    options: dict[str, Any] = {"whitespace_flexible": False}
    if not shape.disable_any_whitespace:
        options = {"whitespace_pattern": whitespace}
    if core is True:
        core = {}
    if core is False:
        raise ShapeError("no text has this shape", "json")
    return json.dumps({**core, "x-guidance": options})


def _whitespace(regex: str) -> str:
    """Return a regex of whitespace in the engine's dialect, in which a `\\s` is JSON's own."""
    field = "whitespace_pattern"
    (text,) = _regexes(regex, field, is_single=True)
    text = text.replace(r" \t\n\r\f\x0B", r"\x20\x09\x0A\x0D")
    if not _BLANK.fullmatch(text):
        raise ShapeError(
            f"{regex[:64]!r} must consist of blanks, tabs and line breaks, as characters or in "
            "classes: JSON allows no others between its parts",
            field,
        )
    return text


def _regexes(regex: str, field: str, *, is_single: bool) -> list[str]:
    try:
        return all_translated(regex, is_whole=True, is_single=is_single)
    except RegexError as error:
        raise ShapeError(str(error), field) from None


def _of_gbnf(text: str) -> str:
    try:
        return gbnf.to_lark(text)
    except gbnf.GbnfError as error:
        raise ShapeError(f"it is no GBNF: {error}", "grammar") from None
