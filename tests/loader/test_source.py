"""Paths of models, and names that are no model."""

from pathlib import Path

import numpy as np
import pytest

from octavo.loader.errors import CheckpointError, SourceError, UnsupportedFormatError
from octavo.loader.source import resolve
from tests.loader.make_files import write_index, write_safetensors


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def model(here: Path) -> Path:
    directory = here / "some model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    write_safetensors(directory / "model.safetensors", {"w": np.ones(2, np.float32)})
    return directory


def test_a_directory(model: Path) -> None:
    for name in (str(model), "some model", "./some model/", "~/some model"):
        source = resolve(name)
        assert source.name == name
        assert source.directory.samefile(model)
        assert not source.is_gguf
        assert source.open().read("w").tolist() == [1, 1]


def test_a_directory_with_an_index(model: Path) -> None:
    (model / "model.safetensors").rename(model / "one.safetensors")
    write_index(model / "model.safetensors.index.json", {"w": "one.safetensors"})
    source = resolve(str(model))
    assert source.index == model / "model.safetensors.index.json"
    assert source.open().path == source.index


def test_a_directory_of_parts(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    second = model / "model-00002-of-00002.safetensors"
    write_safetensors(second, {"v": np.ones(1, np.int8)})
    assert set(resolve(str(model)).open().tensors) == {"v", "w"}
    second.unlink()
    with pytest.raises(CheckpointError, match="some model: only 1 of the 2 parts"):
        resolve(str(model))


def test_a_safetensors_file(model: Path) -> None:
    source = resolve(str(model / "model.safetensors"))
    assert source.directory == model
    (model / "config.json").unlink()
    for name in (str(model / "model.safetensors"), str(model)):
        with pytest.raises(
            CheckpointError, match=r"some model: .* config\.json is not; copy the whole"
        ):
            resolve(name)


def test_a_gguf_file(gguf_path: Path) -> None:
    for name in (str(gguf_path), "model.gguf", str(gguf_path.parent)):
        source = resolve(name)
        assert source.is_gguf
        assert source.open().metadata.string("general.architecture") == "llama"


def test_a_directory_without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"some model: no weights .*; it holds 'config\.json'"):
        resolve(str(model))


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
def test_pickles(model: Path, suffix: str) -> None:
    pickle = (model / "model.safetensors").rename(model / f"model{suffix}")
    for name in (str(pickle), str(model)):
        with pytest.raises(UnsupportedFormatError, match="can run any code; convert it once with"):
            resolve(name)


def test_another_kind_of_file(model: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"config\.json: not a model file; a model is"):
        resolve(str(model / "config.json"))


@pytest.mark.parametrize(
    "name",
    ["nonsense", "", ".", "/no/such/place", "no/such.gguf", "a/b/c", "x" * 5000, "a\0b",
     "model.bin", "http://host/model", "pypi", "~nobody/x"],
)  # fmt: skip
def test_errors_for_unknown_names_list_the_valid_forms(name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve(name)
    if Path(name[:9]).is_dir() and name:
        assert "no weights" in str(caught.value)
    else:
        assert "a model is a directory, a .gguf file, ORG/NAME[@REVISION]" in str(caught.value)
        assert "or one of: smollm2" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("smolm2", "did you mean 'smollm2'"),
        ("SmolLM2", "did you mean 'smollm2'"),
        ("some modle", "did you mean 'some model'"),
        ("some model/model.safetensor", "did you mean 'some model/model.safetensors'"),
        ("Qwen3-0.6b", "did you mean 'Qwen/Qwen3-0.6B'"),
    ],
)
def test_near_names_are_suggested(here: Path, model: Path, name: str, near: str) -> None:
    (here / "hub/models--Qwen--Qwen3-0.6B").mkdir(parents=True)
    with pytest.raises(SourceError) as caught:
        resolve(name)
    assert near in str(caught.value)
