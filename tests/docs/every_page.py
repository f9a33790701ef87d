"""Each page for users does what it says: a reader types all of it, in `make test-docs`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import PAGES
from tests.docs.reader import Reader


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages type curl")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    assert Reader(tmp_path).follow(page) > 0
