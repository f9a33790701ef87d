"""The descriptions of a text's shape: which are right, and what is wrong with the others."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.pooling import Pooling
from octavo.core.sampling_params import RequestError, SamplingParams
from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams

LONG = "x" * 140_000


class Pydantic:
    """A class like the models of pydantic, which have this method."""

    def model_json_schema(self) -> dict[str, Any]:
        raise AssertionError("the caller's to call")


def test_schemas_and_tags_are_stored_as_text() -> None:
    described, text = {"a": [1, "é"]}, '{"a": [1, "\\u00e9"]}'
    assert StructuredOutputsParams(json=described).json == text
    assert StructuredOutputsParams(structural_tag=described).structural_tag == text
    assert StructuredOutputsParams(json=described) == StructuredOutputsParams(json=text)
    assert StructuredOutputsParams(json=True).json == "true"
    assert hash(StructuredOutputsParams(choice=("a",))) == hash(
        StructuredOutputsParams(choice=["a"])  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {}},
        {"json_object": True},
        {"regex": "a"},
        {"choice": ("a", "b")},
        {"grammar": "start: A"},
        {"grammar": "start: %json {}", "disable_any_whitespace": True},
        {"structural_tag": {}},
        {"json": {}, "whitespace_pattern": " ?", "strict": False},
        {"json": {}, "json_object": False, "disable_any_whitespace": True},
    ],
)
def test_one_shape_is_right(fields: dict[str, Any]) -> None:
    StructuredOutputsParams(**fields)


@pytest.mark.parametrize(
    ("fields", "field", "path", "words"),
    [
        ({}, "structured_outputs", "", "none is given"),
        ({"json_object": False}, "structured_outputs", "", "none is given"),
        ({"regex": "a", "choice": ("b",)}, "choice", "", "regex and choice are given"),
        ({"json": 5}, "json", "", "a int was given"),
        ({"json": Pydantic}, "json", "", "pass its model_json_schema()"),
        ({"json": {"a": {1}}}, "json", "", "cannot be written as JSON"),
        ({"json": {"a": float("nan")}}, "json", "", "cannot be written as JSON"),
        ({"regex": 5}, "regex", "", "must be a string"),
        ({"regex": ""}, "regex", "", "empty"),
        ({"regex": LONG}, "regex", "", "140000 characters; at most 131072"),
        ({"choice": "abc"}, "choice", "", "must be a list"),
        ({"choice": {"a"}}, "choice", "", "must be a list"),
        ({"choice": ()}, "choice", "", "0 entries"),
        ({"choice": ("a",) * 5000}, "choice", "", "5000 entries; 1 to 4096"),
        ({"choice": ("a", "")}, "choice", "[1]", "not empty"),
        ({"choice": ("a", 1)}, "choice", "[1]", "must be text"),
        ({"choice": (LONG, "a")}, "choice", "", "140001 characters"),
        ({"json_object": 1}, "json_object", "", "True or False"),
        ({"json": {}, "strict": None}, "strict", "", "True or False"),
        (
            {"regex": "a", "whitespace_pattern": " "},
            "whitespace_pattern",
            "",
            "JSON, of which regex has none",
        ),
        (
            {"choice": ("a",), "disable_additional_properties": True},
            "disable_additional_properties",
            "",
            "choice has none",
        ),
        (
            {"grammar": "start: A", "disable_any_whitespace": True},
            "disable_any_whitespace",
            "",
            "grammar has none",
        ),
        (
            {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "whitespace_pattern",
            "",
            "no whitespace",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str, path: str, words: str) -> None:
    with pytest.raises(ShapeError) as caught:
        StructuredOutputsParams(**fields)
    error = caught.value
    assert (error.field, error.path) == (field, path)
    assert words in error.what
    assert str(error) == f"{field}{path}: {error.what}"


def test_a_request_for_a_vector_has_no_shape() -> None:
    shape = StructuredOutputsParams(regex="a")
    for fields in ({"structured_outputs": shape}, {"grammar": "start: /a/"}):
        with pytest.raises(RequestError, match=r"structured_outputs .* pooling"):
            SamplingParams(pooling=Pooling("last"), max_tokens=1, **fields)


def test_a_shape_has_its_own_type() -> None:
    with pytest.raises(RequestError, match="structured_outputs is a dict"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
