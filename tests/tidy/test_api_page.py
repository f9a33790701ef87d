"""The page about the API is current."""

from tests.tidy.api_page import PAGE, generated, page


def test_the_page_is_current() -> None:
    """`python -m tests.tidy.api_page --write` mends it."""
    text = PAGE.read_text("utf-8")
    assert page(text) == text


def test_a_page_that_is_not_current_is_noticed() -> None:
    text = PAGE.read_text("utf-8").replace("`temperature`", "`heat`", 1)
    assert page(text) != text
    assert "`temperature`" in generated()
