"""What the server's tests share: a tokenizer's files, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.engine import make_directory


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's text side."""
    return make_directory(tmp_path_factory.mktemp("text"))
