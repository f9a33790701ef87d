"""Fixtures of the command line's tests: the tiny model and caches of the test's own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.tiny import make_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a complete tiny model."""
    return str(make_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches: `octavo` and `hub` below this directory."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "octavo"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Put bytes into standard input."""

    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))

    give(b"")
    return give
