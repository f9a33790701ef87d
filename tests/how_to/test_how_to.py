"""A reader who follows a page of docs/how-to ends with code that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.how_to.follow import PAGES, follow

NAMES = sorted(page.name for page in PAGES.glob("add-*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_followed(name: str, tmp_path: Path) -> None:
    """The steps of each page apply to the code as it is, and its checks hold."""
    follow(name, tmp_path)
