"""The digest by which nodes see whether they have the same model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.engine.nodes.model_digest import _APART_BYTES, _SAMPLE_BYTES, digest_of
from octavo.loader import ModelFiles
from octavo.models.load import configurations

SIZE = 2 * _APART_BYTES + 100_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model whose file of weights is large, and empty for the most part."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    with (directory / "weights").open("wb") as file:
        file.truncate(SIZE)
    return directory


def digest(model: Path, name: str = "weights") -> bytes:
    return digest_of(configurations(source(model, "model.safetensors")), [model / name])


def source(model: Path, name: str) -> ModelFiles:
    return ModelFiles("model", model, (model / name,))


def write(at: int) -> Callable[[Path], None]:
    """Return what writes a byte into the weights."""

    def change(model: Path) -> None:
        with (model / "weights").open("r+b") as file:
            file.seek(at)
            file.write(b"x")

    return change


def test_a_copy_under_other_names_is_the_same_model(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(model / "config.json", copy)
    shutil.copy(model / "weights", copy / "others")
    assert digest(copy, "others") == digest(model)


@pytest.mark.parametrize(
    "change",
    [
        write(0),
        write(_SAMPLE_BYTES - 1),
        write(_APART_BYTES),
        write(2 * _APART_BYTES + 5),
        write(SIZE - 1),
        lambda model: (model / "config.json").write_text("{ }"),
        lambda model: (model / "hf_quant_config.json").write_text("{}"),
        lambda model: os.truncate(model / "weights", SIZE - 1),
        lambda model: os.truncate(model / "weights", SIZE + 1),
        lambda model: os.truncate(model / "weights", 0),
    ],
)
def test_a_model_that_differs_has_another_digest(
    model: Path, change: Callable[[Path], object]
) -> None:
    before = digest(model)
    change(model)
    assert digest(model) != before


def test_the_order_of_files_counts(model: Path) -> None:
    (model / "more").write_bytes(b"more")
    files = [model / "weights", model / "more"]
    assert digest_of([], files) != digest_of([], files[::-1])


def test_what_lies_beside_a_gguf_file_does_not_count(model: Path) -> None:
    assert configurations(source(model, "model.gguf")) == ()
