"""Shapes that would cost much, or are wrong: schemas, regexes and grammars without measure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from benchmarks.hostile.attack import CHAT, COMPLETIONS, Attack, Kinds, Right, post

KINDS = Kinds()
NUMBERS = (-(2**63), 2**63, 10**30, -1, 0, 1, 0.1, 1e300, 1e-300, -0.0, 2**53, 10**6, 10**9)
WORDS = ("a", "", "x" * 300, "é", '"', "\\", "\x00", "$ref", "(", "[", "^a$", "\ud800", "😀" * 50)
KEYWORDS = (
    *("type", "enum", "const", "anyOf", "allOf", "oneOf", "not", "if", "then", "$ref", "minimum"),
    *("maximum", "multipleOf", "minLength", "maxLength", "pattern", "format", "items", "required"),
    *("prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "properties", "$defs"),
    *("additionalProperties", "patternProperties", "propertyNames", "minProperties", "unknown"),
)


def _any_value(chance: random.Random, depth: int) -> Any:
    """Return any JSON, which may be a schema."""
    kind = chance.random()
    if depth and kind < 0.5:
        return {chance.choice(KEYWORDS): _any_value(chance, depth - 1) for _ in range(3)}
    if depth and kind < 0.7:
        return [_any_value(chance, depth - 1) for _ in range(chance.randint(0, 4))]
    return chance.choice((None, True, False, *NUMBERS, *WORDS, "integer", "object", "#"))


def _deep(chance: random.Random) -> Any:
    schema: Any = {"type": "integer"}
    step = chance.choice(("items", "not", "additionalProperties", "properties", "anyOf"))
    for _ in range(chance.choice((20, 60, 90))):
        schema = {step: {"properties": {"a": schema}, "anyOf": [schema]}.get(step, schema)}
    return schema


def _recursive(chance: random.Random) -> Any:
    count = chance.choice((5, 30, 200))
    keyword = chance.choice(("allOf", "anyOf", "oneOf"))
    ends = chance.choice(({"$ref": "#/$defs/d0"}, {"type": "integer"}))
    definitions: dict[str, Any] = {
        f"d{number}": {keyword: [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(count)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": ends}}


def _counts(chance: random.Random) -> Any:
    count = chance.choice((100, 10_000, 10**9))
    schema: Any = {"type": "string", "minLength": count}
    for _ in range(chance.randint(1, 4)):
        schema = {"type": "array", "items": schema, "minItems": count, "maxItems": count}
    return schema


def _many(chance: random.Random) -> Any:
    count = chance.choice((100, 1000, 3000))
    names = [f"{chance.choice('abc')}{number}" for number in range(count)]
    return chance.choice(
        (
            {"enum": names},
            {"properties": {name: {"pattern": "^[a-z]{3,40}$"} for name in names}},
            {"properties": dict.fromkeys(names, True), "minProperties": 2},
            {"oneOf": [{"required": [name]} for name in names]},
            {"dependentRequired": {name: ["b"] for name in names}},
            {"allOf": [{"anyOf": [{"required": [name]}, {"minProperties": 1}]} for name in names]},
            {"not": {"enum": names}},
        )
    )


def _regex(chance: random.Random) -> str:
    count = chance.choice((10, 50, 1000))
    return chance.choice(
        (
            "(" * count + "a" + "){1,9}" * count,
            f"(a|b)*a(a|b){{{count}}}",
            "|".join(f"{number}x*" for number in range(count)),
            f"(.*a){{{count}}}",
            "(?=a)" * count,
            "[" * count,
            "\\" * count,
            f"a{{{count},{count * count}}}",
            "".join(chance.choice("ab(|)*+?[]^$.\\d{},-") for _ in range(count)),
        )
    )


def _grammar(chance: random.Random) -> str:
    count = chance.choice((10, 40, 1000))
    chain = "\n".join(f"a{number} ::= a{number + 1} a{number + 1}" for number in range(count))
    return chance.choice(
        (
            f'root ::= a0\n{chain}\na{count} ::= "x"',
            'root ::= root root | "a" | ""',
            "root ::= " + "(" * count + '"a"' + "){1,60000}" * count,
            "start: A\nA: " + " & ".join(f"/(a|b)*a(a|b){{{n}}}/" for n in range(count)),
            "start: A\nA: " + "~(" * count + "/a/" + ")" * count,
            'start: (((a{1,1000}){1,1000}){1,1000}){1,1000}\na: "x" | "(" start ")"',
            'start: %json {"const": -9223372036854775808}',
            "%llguidance {}" * count,
            "start: " + "a" * count,
            "".join(chance.choice('root:=| ()"a\n[]*+{}<>%/\\') for _ in range(count)),
        )
    )


def _body(chance: random.Random, field: str, value: Any) -> Attack:
    body: dict[str, Any] = {field: value, "max_tokens": 1}
    if chance.random() < 0.5:
        return Attack((post(COMPLETIONS, {**body, "prompt": "x"}),), Right.SERVED)
    messages = [{"role": "user", "content": "x"}]
    return Attack((post(CHAT, {**body, "messages": messages}),), Right.SERVED)


def _schema_attack(chance: random.Random, make: Callable[[random.Random], Any]) -> Attack:
    schema, strict = make(chance), chance.choice((True, False, None))
    if chance.random() < 0.5:
        return _body(chance, "json_schema", schema)
    described = {"name": "x", "schema": schema, "strict": strict}
    return _body(chance, "response_format", {"type": "json_schema", "json_schema": described})


@KINDS.add()
def shapes_of_any_json(chance: random.Random) -> Attack:
    return _schema_attack(chance, lambda chance: _any_value(chance, 4))


@KINDS.add(share=0.5)
def shapes_that_are_deep(chance: random.Random) -> Attack:
    return _schema_attack(chance, _deep)


@KINDS.add(share=0.5)
def shapes_that_refer_to_themselves(chance: random.Random) -> Attack:
    return _schema_attack(chance, _recursive)


@KINDS.add(share=0.5)
def shapes_that_count(chance: random.Random) -> Attack:
    return _schema_attack(chance, _counts)


@KINDS.add(share=0.5)
def shapes_of_many_parts(chance: random.Random) -> Attack:
    return _schema_attack(chance, _many)


@KINDS.add()
def shapes_of_regexes(chance: random.Random) -> Attack:
    if chance.random() < 0.5:
        return _schema_attack(chance, lambda chance: {"type": "string", "pattern": _regex(chance)})
    return _body(chance, "regex", _regex(chance))


@KINDS.add()
def shapes_of_grammars(chance: random.Random) -> Attack:
    return _body(chance, chance.choice(("grammar", "ebnf", "guided_grammar")), _grammar(chance))


@KINDS.add(share=0.5)
def shapes_with_wrong_fields(chance: random.Random) -> Attack:
    field = chance.choice(("response_format", "structured_outputs", "guided_json", "guided_choice"))
    return _body(chance, field, _any_value(chance, 3))
