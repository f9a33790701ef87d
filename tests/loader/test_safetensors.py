"""The safetensors reader, on one file and on several."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.loader.errors import CheckpointError, CorruptFileError, UnsupportedFormatError
from octavo.loader.safetensors import open_safetensors
from octavo.loader.safetensors_shards import open_shards, open_with_index
from tests.loader.make_files import (
    SAFETENSORS_NAMES,
    safetensors_bytes,
    with_header,
    write_index,
    write_safetensors,
)

Arrays = dict[str, NDArray[Any]]


def arrays_of_every_type() -> Arrays:
    values = np.array([[0, 1, 2], [3, 4, 5]])
    return {
        name: values.astype(getattr(ml_dtypes, name) if "float8" in name else name)
        for name in SAFETENSORS_NAMES
        if name != "bfloat16"
    } | {"bfloat16": values.astype(ml_dtypes.bfloat16)}


def test_every_type(tmp_path: Path) -> None:
    arrays = arrays_of_every_type()
    path = write_safetensors(tmp_path / "a.safetensors", arrays, {"format": "pt"})
    checkpoint = open_safetensors(path)
    assert checkpoint.metadata.string("format") == "pt"
    assert set(checkpoint.tensors) == set(arrays)
    for name, array in arrays.items():
        read = checkpoint.read(name)
        assert read.dtype == array.dtype
        assert read.tolist() == array.tolist()
        assert not read.flags.writeable
        assert read.flags.aligned
        assert checkpoint.read_float32(name).tolist() == array.astype(np.float32).tolist()


def test_agrees_with_the_reference_library(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    arrays: Arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones(3, np.float16),
    }
    path = tmp_path / "theirs.safetensors"
    reference.save_file(arrays, path, {"writer": "reference"})
    checkpoint = open_safetensors(path)
    assert checkpoint.metadata.string("writer") == "reference"
    assert {name: checkpoint.read(name).tolist() for name in arrays} == {
        name: array.tolist() for name, array in arrays.items()
    }
    ours = write_safetensors(tmp_path / "ours.safetensors", arrays)
    assert reference.load_file(ours)["b"].tolist() == arrays["b"].tolist()


def test_shapes_without_elements_or_dimensions(tmp_path: Path) -> None:
    arrays: Arrays = {"none": np.empty((3, 0), np.float32), "scalar": np.array(7, np.int64)}
    checkpoint = open_safetensors(write_safetensors(tmp_path / "a.safetensors", arrays))
    assert checkpoint.read("none").shape == (3, 0)
    assert checkpoint.read("scalar").shape == ()
    assert checkpoint.read("scalar") == 7


def test_misaligned_tensors_are_copied(tmp_path: Path) -> None:
    """The format requires no alignment, but code that computes on the array may."""
    arrays: Arrays = {"one": np.ones(1, np.uint8), "rest": np.arange(4, dtype=np.float64)}
    checkpoint = open_safetensors(write_safetensors(tmp_path / "a.safetensors", arrays))
    assert checkpoint.info("rest").offset % 8
    read = checkpoint.read("rest")
    assert read.flags.aligned
    assert not read.flags.writeable
    assert read.tolist() == [0, 1, 2, 3]


def test_an_empty_model(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(with_header(b"{}"))
    assert len(open_safetensors(path)) == 0


def entry(
    dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = safetensors_bytes({"a": np.ones(3, np.float32), "b": np.ones(2, np.int8)})
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as caught:
            open_safetensors(path)
        assert str(path) in str(caught.value)


HUGE = 10**30


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "the file is empty"),
        (struct.pack("<Q", 1 << 63) + b"{}", "header claims 9,223,372,036,854,775,808 bytes"),
        (struct.pack("<Q", 100) + b"{}", "header ends at byte 108 but the file has 10 bytes"),
        (with_header(b"{"), "the header is not valid JSON"),
        (with_header(b'{"a": "\xff"}'), "the header is not valid JSON"),
        (with_header(b"{}x"), "the header is not valid JSON"),
        (with_header(b'{"a":' + b"[" * 100_000), "nested too deeply"),
        (with_header(b'{"a": {}, "a": {}}'), "the header has the key 'a' twice"),
        (with_header(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "key 'dtype' twice"),
        (with_header(b'{"a": NaN}'), "holds 'NaN', not a finite number"),
        (with_header(b'{"a": 1e999}'), "holds '1e999', not a finite number"),
        (with_header(b'{"a": ' + b"9" * 5000 + b"}"), "the header is not valid JSON"),
        (with_header({"__metadata__": {"a": 1}}), "must map strings to strings"),
        (with_header({"__metadata__": []}), "must map strings to strings"),
        (with_header({"a": 1}), "'a': its entry must have dtype, shape and data_offsets"),
        (with_header({"a": entry(more=1)}), "and nothing else"),
        (with_header({"a": entry(shape=[-1])}), "shape must be a list of sizes"),
        (with_header({"a": entry(shape=[2.0])}), "shape must be a list of sizes"),
        (with_header({"a": entry(shape=[True, 2])}), "shape must be a list of sizes"),
        (with_header({"a": entry(shape=2)}), "shape must be a list of sizes"),
        (with_header({"a": entry(offsets=[0])}), "data_offsets a list of two"),
        (with_header({"a": entry(offsets=[8, 0])}), r"takes 8 bytes, but .* \[8, 0\] span -8"),
        (with_header({"a": entry(offsets=[0, 12])}), r"F32 of shape \[2\] takes 8 .* span 12"),
        (with_header({"a": entry(shape=[HUGE])}), r"impossible shape \[huge\]"),
        (with_header({"a": entry(shape=[1 << 61, 1 << 61])}), "more elements than memory"),
        (with_header({"a": entry(shape=[1] * 33)}), "33 dimensions, at most 32"),
        (with_header({"a": entry(shape=[1] * 40_000)}), "40,000 dimensions"),
        (with_header({"a": entry()}, bytes(5)), "'a': its 8 bytes end at byte .*truncated"),
        (with_header({"a": entry()}, bytes(9)), "tensors end at byte .* but the file has"),
        (with_header({"a": entry(offsets=[4, 12])}, bytes(12)), "after 4 bytes of nothing"),
        (with_header({"a": entry(offsets=[HUGE, HUGE + 8])}, bytes(8)), "'a': its 8 bytes end at"),
        (
            with_header({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
            "'b': starts at byte .*, inside tensor 'a', which ends at byte",
        ),
        (
            with_header({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)),
            "'b': starts at byte .*, after 4 bytes of nothing",
        ),
    ],
)
def test_contradictions(tmp_path: Path, data: bytes, match: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=match) as caught:
        open_safetensors(path)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"PK\x03\x04" + bytes(40), "not a safetensors file but a zip archive, perhaps a pickled"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"GGUF" + bytes(30), "a GGUF file"),
        (with_header({"a": entry(dtype="F4")}), "the unknown type 'F4'; known types: F64, F32"),
        (with_header({"a": entry(dtype=3)}), "the unknown type '3'"),
    ],
)
def test_unsupported_formats(tmp_path: Path, data: bytes, match: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(UnsupportedFormatError, match=match):
        open_safetensors(path)


def test_hostile_names_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(with_header({"x\nERROR forged\x1b[2J" + "y" * 9000: entry(shape=[3])}))
    with pytest.raises(CorruptFileError) as caught:
        open_safetensors(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 500


class TestShards:
    """A model over two files."""

    @pytest.fixture
    def index(self, tmp_path: Path) -> Path:
        write_safetensors(tmp_path / "one.safetensors", {"a": np.ones(2, np.float32)})
        write_safetensors(tmp_path / "two.safetensors", {"b": np.ones(3, np.float32)}, {"k": "v"})
        owners = {"a": "one.safetensors", "b": "two.safetensors"}
        return write_index(tmp_path / "model.safetensors.index.json", owners)

    def test_whole(self, index: Path) -> None:
        checkpoint = open_with_index(index)
        assert set(checkpoint.tensors) == {"a", "b"}
        assert checkpoint.info("b").path.name == "two.safetensors"
        assert checkpoint.read("b").shape == (3,)
        assert checkpoint.metadata.string("k") == "v"

    def test_without_an_index(self, index: Path) -> None:
        checkpoint = open_shards(
            [index.with_name("one.safetensors"), index.with_name("two.safetensors")]
        )
        assert set(checkpoint.tensors) == {"a", "b"}

    def test_missing_shard(self, index: Path) -> None:
        (index.parent / "two.safetensors").unlink()
        with pytest.raises(CorruptFileError, match=r"two\.safetensors: this shard is missing"):
            open_with_index(index)

    def test_tensor_not_in_its_shard(self, index: Path) -> None:
        write_safetensors(index.with_name("two.safetensors"), {})
        with pytest.raises(CorruptFileError, match=r"two\.safetensors: tensor 'b': is not here"):
            open_with_index(index)

    def test_tensor_that_the_index_does_not_list(self, index: Path) -> None:
        write_index(index, {"a": "one.safetensors"})
        checkpoint = open_with_index(index)  # the other file is not opened
        assert set(checkpoint.tensors) == {"a"}
        arrays: Arrays = {"a": np.ones(2, np.float32), "c": np.ones(4, np.int8)}
        write_safetensors(index.with_name("one.safetensors"), arrays)
        with pytest.raises(CorruptFileError, match=r"'c': its 4 bytes are here, but .* nowhere"):
            open_with_index(index)

    def test_tensor_in_another_shard(self, index: Path) -> None:
        write_index(index, {"a": "two.safetensors", "b": "one.safetensors"})
        with pytest.raises(CorruptFileError, match=r"'a': .* places it in 'two\.safetensors'"):
            open_with_index(index)

    def test_tensor_twice(self, index: Path) -> None:
        write_safetensors(index.with_name("two.safetensors"), {"a": np.ones(1, np.int8)})
        with pytest.raises(CorruptFileError, match=r"'a': is also in one\.safetensors"):
            open_shards([index.with_name("one.safetensors"), index.with_name("two.safetensors")])

    @pytest.mark.parametrize(
        "name", ["../one.safetensors", "/etc/passwd", "a\\b", "..", "", 3, None]
    )
    def test_an_index_cannot_lead_elsewhere(self, index: Path, name: object) -> None:
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(CorruptFileError, match=r"'a': the index places it in .* not a file's"):
            open_with_index(index)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
    def test_bad_index(self, index: Path, text: str) -> None:
        index.write_text(text)
        with pytest.raises(CorruptFileError, match="the index"):
            open_with_index(index)

    def test_no_index(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="cannot be read: No such file"):
            open_with_index(tmp_path / "model.safetensors.index.json")
