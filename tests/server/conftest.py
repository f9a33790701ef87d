"""The fixture of the server's tests: the files of a tokenizer, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.engine import make_directory
from tests.workers.kept_workers import kept_workers


@pytest.fixture(scope="session", autouse=True)
def _shared_prompt_workers() -> Iterator[None]:
    with kept_workers():
        yield


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a tokenizer and its configuration."""
    return make_directory(tmp_path_factory.mktemp("text"))
