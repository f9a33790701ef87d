"""Errors get a dialect's names of their fields, in one way for all dialects."""

from __future__ import annotations

import pytest

from octavo.transport.errors import ApiError, invalid

NAMES = {
    "seed": "random_seed",
    "shape": "format",
    "shape.json": "format.schema",
    "prompt": "input",
    "messages": "input",
}


@pytest.mark.parametrize(
    ("message", "param", "expected"),
    [
        ("seed=5 and seeds: use seed", "seed", "random_seed=5 and seeds: use random_seed"),
        ("shape.json.a\\1: wrong", "shape.json.a\\1", "format.schema.a\\1: wrong"),
        ("shape.regex: wrong", "shape.regex", "format.regex: wrong"),
        ("the prompt has no tokens", "prompt", "the prompt has no tokens"),
        ("messages[1] is empty", "messages[1]", "messages[1] is empty"),
        ("shapes: wrong", "shapes", "shapes: wrong"),
        ("seed: wrong", None, "seed: wrong"),
    ],
)
def test_a_field_is_renamed_in_the_message_too(
    message: str, param: str | None, expected: str
) -> None:
    error = invalid(message, param, "code").renamed(NAMES)
    assert (error.message, error.code) == (expected, "code")
    assert error.param == {
        "seed": "random_seed",
        "shape.json.a\\1": "format.schema.a\\1",
        "shape.regex": "format.regex",
        "prompt": "input",
        "messages[1]": "input",
    }.get(str(param), param)


def test_errors_of_the_server_have_no_fields_to_rename() -> None:
    error = ApiError(503, "seed: busy", param="seed").renamed(NAMES)
    assert (error.param, error.message) == ("seed", "seed: busy")


@pytest.mark.parametrize(
    ("message", "param", "expected"),
    [
        ("the prompt has 9 tokens", "prompt", "input[2] has 9 tokens"),
        ("prompt has 9 tokens", None, "input[2] has 9 tokens"),
        ("no tokens", "prompt", "input[2]: no tokens"),
        ("prompts are long", "prompt", "input[2]: prompts are long"),
    ],
)
def test_the_place_of_an_input_begins_the_message(
    message: str, param: str | None, expected: str
) -> None:
    error = invalid(message, param).at("input[2]")
    assert (error.message, error.param) == (expected, "input[2]")
