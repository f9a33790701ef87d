"""Numbers in queries are bounded before they are computed with."""

from __future__ import annotations

import pytest

from octavo.serving.schema.queries import bounded_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("0100", 100),
        ("101", None),
        ("0", None),
        ("", None),
        ("-5", None),
        ("²", None),
        ("٣", None),
        ("1" + "0" * 5000, None),
        ("000000001" + "0" * 5000, None),
        ("0000000000000019999", None),
    ],
)
def test_only_numbers_within_the_bounds_are_read(text: str, number: int | None) -> None:
    assert bounded_number(text, 1, 100) == number
