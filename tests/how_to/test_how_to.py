"""A reader who follows a page of docs/how-to ends with code that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.how_to.follow import PAGES, ROOT, blocks, follow
from tests.models.test_registry import imported, is_allowed

NAMES = sorted(page.name for page in PAGES.glob("add-*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_followed(name: str, tmp_path: Path) -> None:
    """The steps of each page apply to the code as it is, and its checks hold."""
    follow(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_places_that_a_page_names_exist(name: str) -> None:
    """A file or folder that was moved must be corrected on the page."""
    text = (PAGES / name).read_text("utf-8")
    new = set(re.findall(r"New file `([^`]+)`", text))
    places = set(re.findall(r"`((?:octavo|csrc|tests|docs)/[\w/.-]+)`", text)) - new
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


def test_the_new_family_is_short_and_only_declares() -> None:
    """The file has at most 60 lines and imports what other family files may import."""
    (code,) = [code for before, code in blocks("add-a-model.md") if before.startswith("New file")]
    assert code.count("\n") <= 60
    assert all(map(is_allowed, imported(code)))
