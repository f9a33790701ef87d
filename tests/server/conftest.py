"""What the server's tests share: a tokenizer's files, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.engine import make_directory
from tests.server.kept_workers import kept_workers


@pytest.fixture(scope="session", autouse=True)
def _shared_prompt_workers() -> Iterator[None]:
    with kept_workers():
        yield


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's text side."""
    return make_directory(tmp_path_factory.mktemp("text"))
