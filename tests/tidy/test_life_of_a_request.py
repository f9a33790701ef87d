"""The page about the life of a request names files and classes that exist."""

from __future__ import annotations

import re

from tests.tidy.source import ROOT

PAGE = (ROOT / "docs" / "life-of-a-request.md").read_text("utf-8")
PACKAGE = ROOT / "octavo"
_NAME = re.compile(r"`([A-Za-z_]\w*)`")
_FILE = re.compile(r"`([\w/]+\.py)`")
# Words of the page in code that are no names of the package.
OTHERS = {"n", "send", "param", "LLM"}


def test_every_file_on_the_page_exists() -> None:
    """A file that was moved or renamed must be corrected on the page."""
    files = {name for name in _FILE.findall(PAGE) if not name.startswith("tests/")}
    assert len(files) > 30
    assert [name for name in sorted(files) if not (PACKAGE / name).exists()] == []


def test_every_name_on_the_page_is_defined() -> None:
    """A class, function or table that was renamed must be corrected on the page."""
    sources = "\n".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    names = set(_NAME.findall(PAGE)) - OTHERS
    assert len(names) > 25
    missing = [
        name
        for name in sorted(names)
        if not re.search(rf"^\s*(?:class|def|async def) {name}\b|^{name}\b.*=", sources, re.M)
    ]
    assert missing == []
