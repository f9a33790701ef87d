"""The fixture of the workers' tests: the files of a tokenizer, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.engine import make_directory


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a tokenizer and its configuration."""
    return make_directory(tmp_path_factory.mktemp("text"))
