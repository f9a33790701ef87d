"""The page docs/how-to/add-a-limiter.md, followed literally in a copy of the package."""

from pathlib import Path

import pytest

from tests.core.make import config
from tests.how_to.follow import follow


def test_the_page_leads_to_a_limiter_that_works(tmp_path: Path) -> None:
    """The page's example caps the running sequences of a scope in a small scheduler."""
    follow("add-a-limiter.md", tmp_path)


def test_the_setting_of_the_page_is_only_an_example() -> None:
    """The page would not apply to a core that has the setting already."""
    with pytest.raises(TypeError, match="max_seqs_per_scope"):
        config(max_seqs_per_scope=1)
