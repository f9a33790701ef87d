"""The GGUF reader returns the contents of valid files and refuses others with clear errors."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader.errors import CheckpointError, CorruptFileError, UnsupportedFormatError
from octavo.loader.gguf.reader import open_gguf
from tests.loader.conftest import PAIRS, gguf_tensors
from tests.loader.make_files import (
    ARRAY,
    BOOL,
    STRING,
    U16,
    U32,
    GGUFTensor,
    f32_tensor,
    gguf_bytes,
    gguf_string,
    write_gguf,
)

ONE = f32_tensor("one", np.ones(8, np.float32))


def test_metadata_of_every_type(gguf_path: Path) -> None:
    metadata = open_gguf(gguf_path).metadata
    assert metadata.string("general.architecture") == "llama"
    assert metadata.string("general.name") == "Größe 😀"
    assert metadata.integer("llama.block_count") == 2
    assert metadata.number("llama.rope.freq_base") == 10000.0
    assert metadata.number("llama.epsilon") == 1e-5
    assert metadata.boolean("tokenizer.ggml.add_bos_token") is True
    assert metadata.strings("tokenizer.ggml.tokens") == ["<s>", "", "ä", "x" * 300]
    assert metadata.byte_strings("tokenizer.ggml.tokens")[2] == "ä".encode()
    assert metadata.numbers("tokenizer.ggml.scores") == [0.0, -1.5, 2.0, 0.25]
    assert metadata.integers("tokenizer.ggml.token_type") == [3, 1, 1, -1]
    assert metadata.booleans("flags") == [True, False]
    assert metadata.strings("empty") == []
    assert metadata.integers("bytes") == [1, 2, 255]
    assert list(metadata) == [key for key, _, _ in PAIRS]


def test_tensors(gguf_path: Path) -> None:
    checkpoint = open_gguf(gguf_path)
    assert list(checkpoint.tensors) == ["norm", "weight", "half"]
    assert checkpoint.info("weight").shape == (3, 64)
    assert checkpoint.info("weight").type.name == "Q4_0"
    assert checkpoint.info("weight").num_bytes == 108
    assert checkpoint.read("weight").shape == (3, 36)
    assert checkpoint.read_float32("weight").shape == (3, 64)
    assert checkpoint.read("norm").tolist() == [0, 1, 2, 3, 4]
    assert checkpoint.read("half").dtype == np.float16
    assert checkpoint.read_float32("half").tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert checkpoint.num_bytes == 20 + 108 + 16


def test_agrees_with_the_reference_reader(gguf_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(gguf_path)
    checkpoint = open_gguf(gguf_path)
    for tensor in reader.tensors:
        info = checkpoint.info(tensor.name)
        assert (info.offset, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert info.shape == tuple(int(size) for size in tensor.shape)[::-1]
        assert checkpoint.read(tensor.name).tobytes() == tensor.data.tobytes()
    for key, value in checkpoint.metadata.items():
        assert reader.fields[key].contents() == value


def test_tensors_are_views_of_the_mapped_file(gguf_path: Path) -> None:
    checkpoint = open_gguf(gguf_path)
    view = checkpoint.read("norm")
    assert not view.flags.writeable
    assert not view.flags.owndata
    del checkpoint  # the mapping stays as long as the view
    assert view.sum() == 10


@pytest.mark.parametrize("alignment", [1, 8, 256])
def test_other_alignments(tmp_path: Path, alignment: int) -> None:
    pairs = [("general.alignment", U32, alignment)]
    path = write_gguf(tmp_path / "a.gguf", pairs, gguf_tensors(), alignment=alignment)
    checkpoint = open_gguf(path)
    assert checkpoint.read_float32("norm").tolist() == [0, 1, 2, 3, 4]
    assert checkpoint.read("norm").flags.aligned
    assert checkpoint.read_float32("half")[1, 1, 1] == 7


def test_version_2_is_read(tmp_path: Path) -> None:
    assert (
        open_gguf(write_gguf(tmp_path / "a.gguf", PAIRS, [ONE], version=2)).read("one").sum() == 8
    )


def test_a_file_without_tensors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", [("k", STRING, "v")])
    path.write_bytes(path.read_bytes().rstrip(b"\0"))
    assert open_gguf(path).metadata["k"] == "v"


def test_invalid_utf8_fails_only_when_it_is_read(tmp_path: Path) -> None:
    pairs = [("name", STRING, b"\xff"), ("tokens", ARRAY, (STRING, ["a", b"b\xc3"])), ("n", U32, 1)]
    metadata = open_gguf(write_gguf(tmp_path / "a.gguf", pairs)).metadata
    assert metadata.integer("n") == 1
    assert metadata.byte_strings("tokens") == [b"a", b"b\xc3"]
    with pytest.raises(CorruptFileError, match=r"'tokens'\[1\] is not valid UTF-8.*byte 1"):
        metadata.strings("tokens")
    with pytest.raises(CorruptFileError, match=r"'name' is not valid UTF-8"):
        metadata.string("name")


def refused(
    tmp_path: Path, data: bytes, match: str, kind: type = CorruptFileError
) -> CheckpointError:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(kind, match=match) as caught:
        open_gguf(path)
    assert isinstance(caught.value, CheckpointError)
    assert caught.value.path == path
    return caught.value


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: no such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_gguf(tmp_path)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"lmgg" + bytes(40), "not a GGUF file but a GGML file from before GGUF"),
        (b"<!DOCTYPE html>", "not a GGUF file but a web page"),
        (b"\x01\x02" + bytes(40), "not a GGUF file but a file that starts with the bytes 01 02"),
        (gguf_bytes(version=1), "GGUF version 1, and only versions 2 and 3"),
        (gguf_bytes(version=4), "GGUF version 4"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    ],
)
def test_other_kinds_of_file(tmp_path: Path, data: bytes, match: str) -> None:
    refused(tmp_path, data, match, UnsupportedFormatError)


def test_truncated_anywhere(tmp_path: Path, gguf_path: Path) -> None:
    whole = gguf_path.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as caught:
            open_gguf(path)
        assert str(path) in str(caught.value)


def test_truncated_data_names_the_tensor_and_the_bytes(tmp_path: Path) -> None:
    data = gguf_bytes(tensors=[ONE])
    error = refused(
        tmp_path, data[:-3], r"'one': its 32 bytes end at byte 96 .* has 93; .*truncated"
    )
    assert error.tensor == "one"


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "empty"),
        (gguf_bytes(num_pairs=HUGE), "the metadata: 18,446,744,073,709,551,615 entries"),
        (gguf_bytes(num_tensors=HUGE), "directory of tensors: 18,446"),
        (gguf_bytes([("", U32, 1)]), "a length of 0 bytes, must be 1 to 65,535"),
        (gguf_bytes([("k" * 65_536, U32, 1)]), "a length of 65,536 bytes"),
        (gguf_bytes([("k", U32, 1), ("k", U32, 1)]), "key 'k' occurs twice"),
        (gguf_bytes(tensors=[ONE, ONE]), "'one': occurs twice"),
        (gguf_bytes([("general.alignment", U32, 0)]), "alignment is 0, must be a power of two"),
        (gguf_bytes([("general.alignment", U32, 24)]), "alignment is 24"),
        (gguf_bytes([("general.alignment", STRING, "x")]), "must be an integer and is \"'x'\""),
        (gguf_bytes(tensors=[GGUFTensor("t", (1,) * 5, 0, b"1234")]), "5 dimensions, at most 4"),
        (gguf_bytes(tensors=[GGUFTensor("t", (31,), 2, bytes(18))]), "31 elements do not divide"),
        (gguf_bytes(tensors=[GGUFTensor("t", (HUGE, 2), 0, b"")]), "impossible shape"),
        (gguf_bytes(tensors=[GGUFTensor("t", (1 << 61, 8), 0, b"")]), "more elements than memory"),
        (gguf_bytes(tensors=[GGUFTensor("t", (1 << 61, 8, 0), 0, b"")]), "more elements than mem"),
        (gguf_bytes(tensors=[GGUFTensor("t", (1 << 40,), 0, b"")]), "4,398,046,511,104 bytes end"),
        (
            gguf_bytes(tensors=[GGUFTensor("t", (1,), 0, bytes(64), 4)]),
            "offset 4 is not a multiple",
        ),
        (gguf_bytes(tensors=[GGUFTensor("t", (1,), 0, b"1234", 1 << 63)]), "9,223,372,036,854,7"),
        (
            gguf_bytes(tensors=[ONE, GGUFTensor("two", (16,), 0, bytes(64), 0)]),
            "'two': starts at byte .*, inside tensor 'one'",
        ),
    ],
)
def test_contradictions(tmp_path: Path, data: bytes, match: str) -> None:
    refused(tmp_path, data, match)


def raw_pair(key: str | bytes, body: bytes) -> bytes:
    return gguf_bytes(num_pairs=1)[:24] + gguf_string(key) + body


def test_bad_values(tmp_path: Path) -> None:
    refused(tmp_path, raw_pair("k", struct.pack("<II", 13, 0)), "'k' has the unknown type 13")
    refused(tmp_path, raw_pair("k", struct.pack("<IIQ", 9, 13, 0)), "'k' has the unknown type 13")
    array = struct.pack("<IIQ", 9, 8, 1 << 60)
    refused(tmp_path, raw_pair("k", array), "1,152,921,504,606,846,976 entries need at least")
    refused(tmp_path, raw_pair("k", struct.pack("<IIQ", 9, 12, 1 << 61)), "needs 18,446,744")
    strings = struct.pack("<IIQQ", 9, 8, 2, 1 << 63) + bytes(8)
    refused(tmp_path, raw_pair("k", strings), r"'k'\[1\] or the string before it reaches past")
    strings = struct.pack("<IIQQ", 9, 8, 1, 9) + bytes(8)
    refused(tmp_path, raw_pair("k", strings), r"'k'\[0\] or the string before it reaches past")
    refused(
        tmp_path,
        raw_pair("k", struct.pack("<IIQ", 9, 9, 1)),
        "array of arrays",
        UnsupportedFormatError,
    )
    refused(tmp_path, raw_pair("k", struct.pack("<IQ", 8, 1 << 63)), "'k' at .* needs 9,223,372")
    refused(tmp_path, raw_pair(b"\xff", struct.pack("<II", 4, 0)), "not valid UTF-8")


def test_a_boolean_is_zero_or_one(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(raw_pair("k", struct.pack("<IB", BOOL, 2)))
    with pytest.raises(CorruptFileError, match="neither 0 nor 1"):
        open_gguf(path).metadata.boolean("k")


@pytest.mark.parametrize(("code", "match"), [(36, "withdrawn type IQ4_NL_4_4"), (999, "type 999")])
def test_unknown_tensor_types_list_the_known(tmp_path: Path, code: int, match: str) -> None:
    data = gguf_bytes(tensors=[GGUFTensor("t", (32,), code, bytes(64))])
    error = refused(tmp_path, data, match, UnsupportedFormatError)
    assert "Q4_K" in str(error)


class TestParts:
    """A model split over several files."""

    def write(self, tmp_path: Path, number: int, count: int, **changes: Any) -> Path:
        values: dict[str, Any] = {
            "no": number,
            "count": count,
            "total": 2,
            "tensor": f"t{number}",
        } | changes
        pairs = [
            ("split.no", U16, values["no"]),
            ("split.count", U16, values["count"]),
            ("split.tensors.count", 5, values["total"]),
        ]
        if number == 0:
            pairs.append(("general.name", STRING, "first"))
        tensor = f32_tensor(values["tensor"], np.full(8, number, np.float32))
        path = tmp_path / f"m-{number + 1:05}-of-{count:05}.gguf"
        return write_gguf(path, pairs, [tensor])

    def test_whole_from_any_part(self, tmp_path: Path) -> None:
        paths = [self.write(tmp_path, number, 2) for number in range(2)]
        for path in paths:
            checkpoint = open_gguf(path)
            assert checkpoint.read("t0")[0] == 0
            assert checkpoint.read("t1")[0] == 1
            assert checkpoint.metadata.string("general.name") == "first"

    def test_missing_part(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, 0, 2)
        with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf: no such file"):
            open_gguf(path)

    def test_renamed(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, 0, 2).rename(tmp_path / "model.gguf")
        with pytest.raises(UnsupportedFormatError, match="original names"):
            open_gguf(path)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"no": 0}, "named as part 2 but says it is part 1"),
            ({"tensor": "t0"}, r"'t0': is also in m-00001-of-00002\.gguf"),
        ],
    )
    def test_contradictions(self, tmp_path: Path, changes: dict[str, Any], match: str) -> None:
        path = self.write(tmp_path, 0, 2)
        self.write(tmp_path, 1, 2, **changes)
        with pytest.raises(CorruptFileError, match=match):
            open_gguf(path)

    def test_wrong_total(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, 0, 2, total=3)
        self.write(tmp_path, 1, 2)
        with pytest.raises(CorruptFileError, match="hold 2 tensors together, must be 3"):
            open_gguf(path)
