"""The page about the API is current."""

import ast
from itertools import chain

import pytest

from octavo.server.routes import ROUTES
from tests.tidy.api_page import PAGE, generated, page
from tests.tidy.source import ROOT
from tests.tidy.vllm_fields import CLASSES, FIELDS, verdict

CODE_AT = {"unavailable": 1, "invalid": 2, "too_many": 2, "rejected": 0}  # among the arguments


def test_the_page_is_current() -> None:
    """`python -m tests.tidy.api_page --write` mends it."""
    text = PAGE.read_text("utf-8")
    assert page(text) == text


def test_a_page_that_is_not_current_is_noticed() -> None:
    text = PAGE.read_text("utf-8").replace("`temperature`", "`heat`", 1)
    assert page(text) != text
    assert "`temperature`" in generated()


def test_every_field_of_vllm_works_or_has_a_reason() -> None:
    """`verdict` raises for a field that a route's request neither has nor refuses by name."""
    kinds = {route.path: route.request for route in ROUTES if route.request is not None}
    assert FIELDS.keys() == CLASSES.keys()
    for path, names in FIELDS.items():
        assert len(names) > 1
        assert all(verdict(kinds[path], name) for name in names)
    with pytest.raises(LookupError, match="made_up"):
        verdict(kinds["/v1/completions"], "made_up")


def codes() -> set[str]:
    """Return every `error.code` that the server's sources write as a literal."""
    found = set()
    rooms = ("server", "dialects", "serving", "transport", "workers")
    for file in chain(*((ROOT / "octavo" / room).rglob("*.py") for room in rooms)):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = CODE_AT.get(name, len(node.args))
            given = [*node.args[place : place + 1]]
            given += [each.value for each in node.keywords if each.arg == "code"]
            found |= {
                each.value
                for each in given
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
    return found


def test_every_error_code_is_on_the_page() -> None:
    assert {"invalid_api_key", "engine_full", "preparation_full", "unknown_parameter"} <= codes()
    text = PAGE.read_text("utf-8")
    assert not [code for code in sorted(codes()) if f"`{code}`" not in text]
