"""A checkpoint returns tensors and metadata, and is checked against what a model needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.loader.checkpoint import Checkpoint, check_tensors
from octavo.loader.errors import CorruptFileError, TensorMismatchError
from octavo.loader.gguf.reader import open_gguf
from octavo.loader.metadata import Metadata
from octavo.loader.safetensors import open_safetensors
from tests.loader.make_files import write_safetensors


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    arrays: dict[str, NDArray[Any]] = {
        "a": np.ones((2, 3), np.float32),
        "b": np.ones(4, np.float16),
    }
    return open_safetensors(write_safetensors(tmp_path / "m.safetensors", arrays))


def test_names(checkpoint: Checkpoint) -> None:
    assert "a" in checkpoint
    assert "c" not in checkpoint
    assert len(checkpoint) == 2
    assert checkpoint.num_bytes == 24 + 8


def test_no_such_tensor(checkpoint: Checkpoint) -> None:
    with pytest.raises(TensorMismatchError, match=r"m\.safetensors: no tensor 'c' among the 2"):
        checkpoint.read("c")


def test_just_the_expected_tensors(checkpoint: Checkpoint) -> None:
    check_tensors(checkpoint, {"a": (2, 3), "b": (4,)})
    check_tensors(checkpoint, {"a": (2, 3)}, may_be_extra=["b", "unknown"])


def test_missing(checkpoint: Checkpoint) -> None:
    expected = {"a": (2, 3), "b": (4,)} | {f"layer.{i}": (1,) for i in range(7)}
    message = r"7 of the 9 tensors the model needs are missing: 'layer.0', .*'layer.4' and 2 more"
    with pytest.raises(TensorMismatchError, match=message):
        check_tensors(checkpoint, expected)


def test_misshapen(checkpoint: Checkpoint) -> None:
    message = r"'a': has shape \[2, 3\] but the model needs \[3, 3\]: 24 bytes of F32, must be 36"
    with pytest.raises(TensorMismatchError, match=message):
        check_tensors(checkpoint, {"a": (3, 3), "b": (4,)})


def test_misshapen_and_not_in_blocks(gguf_path: Path) -> None:
    message = "108 bytes of Q4_0, must be what does not divide into blocks of 32"
    with pytest.raises(TensorMismatchError, match=message):
        check_tensors(open_gguf(gguf_path), {"weight": (3, 65)})


def test_extra(checkpoint: Checkpoint) -> None:
    message = r"1 tensors that the model does not use: 'b' \(the first has 8 bytes\)"
    with pytest.raises(TensorMismatchError, match=message):
        check_tensors(checkpoint, {"a": (2, 3)})


class TestMetadata:
    """Tests of typed access; gguf/test_reader.py tests the values of each type."""

    @pytest.fixture
    def metadata(self, gguf_path: Path) -> Metadata:
        return open_gguf(gguf_path).metadata

    def test_missing_key(self, metadata: Metadata) -> None:
        with pytest.raises(CorruptFileError, match=r"model\.gguf: the metadata has no key 'none'"):
            metadata.integer("none")
        with pytest.raises(CorruptFileError, match="has no key 'none'"):
            metadata.byte_strings("none")

    def test_defaults(self, metadata: Metadata) -> None:
        assert metadata.integer("none", None) is None
        assert metadata.number("none", 1.5) == 1.5
        assert metadata.boolean("none", default=False) is False
        assert metadata.string("none", "") == ""
        assert metadata.strings("none", []) == []
        assert metadata.integers("none", None) is None
        assert metadata.numbers("none", None) is None
        assert metadata.booleans("none", None) is None
        assert metadata.get("none") is None

    def test_wrong_type(self, metadata: Metadata) -> None:
        for ask, key, message in (
            (metadata.integer, "general.architecture", "must be an integer and is \"'llama'\""),
            (metadata.integer, "tokenizer.ggml.add_bos_token", "must be an integer and is 'True'"),
            (metadata.integer, "llama.epsilon", "must be an integer and is '1e-05'"),
            (metadata.number, "general.architecture", "must be a number"),
            (metadata.boolean, "llama.block_count", "must be true or false and is '2'"),
            (metadata.string, "bytes", "must be a string and is a list of 3"),
            (metadata.strings, "general.name", "must be a list of strings"),
            (metadata.integers, "tokenizer.ggml.scores", "must be a list of integers"),
            (metadata.integers, "flags", "must be a list of integers and is a list of 2"),
            (metadata.numbers, "flags", "must be a list of numbers"),
            (metadata.booleans, "bytes", "must be a list of booleans"),
            (metadata.byte_strings, "bytes", "must be a list of strings"),
        ):
            with pytest.raises(CorruptFileError, match=message):
                ask(key)

    def test_a_default_does_not_hide_a_wrong_type(self, metadata: Metadata) -> None:
        with pytest.raises(CorruptFileError, match="must be an integer"):
            metadata.integer("general.name", 7)
