"""Random texts of the grammars of random schemas are valid, as the reference judges."""

from __future__ import annotations

from random import Random

import pytest

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.generated_schemas import generated_schemas
from tests.grammar.json_schema.random_schemas import wild_schema
from tests.grammar.json_schema.real_schemas import real_schema
from tests.grammar.json_schema.sent_schemas import REFUSED, SENT
from tests.grammar.json_schema.trial import Tally, judge, schemas, try_schema
from tests.grammar.json_schema.walks import accepts, matcher_of


@pytest.mark.parametrize("number", range(40))
def test_texts_of_wild_schemas_are_valid(number: int) -> None:
    tally = Tally()
    try_schema(wild_schema(Random(number)), number, tally)
    assert not tally.wrong


@pytest.mark.parametrize("number", range(40))
def test_texts_of_schemas_that_programs_send_are_valid(number: int) -> None:
    tally = Tally()
    try_schema(real_schema(Random(number)), number, tally)
    assert not tally.wrong


def test_texts_of_generated_schemas_are_valid() -> None:
    tally = Tally()
    for number, schema in enumerate(generated_schemas(40)):
        try_schema(schema, number, tally)
    assert not tally.wrong
    assert tally.num_texts >= 40


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.slow if each == "eight rules" else ()) for each in SENT],
)
def test_texts_of_schemas_that_users_send_are_valid(name: str) -> None:
    tally = Tally()
    try_schema(SENT[name], 0, tally)
    assert not tally.wrong
    assert not tally.refused
    assert tally.num_texts


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_place(name: str) -> None:
    schema, place = REFUSED[name]
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(json=schema))
    assert caught.value.path == place


@pytest.mark.slow
def test_texts_of_a_thousand_schemas_are_valid() -> None:
    tally = Tally()
    for number, schema in enumerate(schemas(1000, first=10_000)):
        try_schema(schema, number, tally)
    assert not tally.wrong
    assert tally.num_texts > 1500
    assert tally.share_refused <= 0.1, tally.refused


def test_a_wrong_text_would_be_found() -> None:
    schema = {"type": "object", "required": ["a"]}
    assert judge(schema, "{}") is not None
    assert judge(schema, '{"a": 1}') is None
    matcher = matcher_of(StructuredOutputsParams(json={"type": "object"}))
    assert accepts(matcher, "{}")
    assert not accepts(matcher, "[]")
