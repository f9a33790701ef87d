"""The table of layouts says what the tests of real processes compare."""

from __future__ import annotations

from tests.ranks.layouts import LAYOUTS, PAGE, cases, with_table


def test_the_table_of_layouts_is_that_of_the_tests() -> None:
    page = PAGE.read_text()
    assert with_table(page) == page
    assert {layout for layout, _ in cases()} == {*LAYOUTS}
