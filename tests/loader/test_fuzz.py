"""For any bytes, a reader raises CheckpointError or everything in the file can be read."""

import json
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import CheckpointError
from octavo.loader.gguf.reader import open_gguf
from octavo.loader.safetensors import open_safetensors
from octavo.loader.safetensors_shards import read_index
from tests.loader.conftest import PAIRS, gguf_tensors
from tests.loader.make_files import gguf_bytes, safetensors_bytes, with_header

GGUF = gguf_bytes(PAIRS, gguf_tensors())
SAFETENSORS = safetensors_bytes(
    {
        "model.norm": np.arange(6, dtype=np.float16).reshape(2, 3),
        "model.weight": np.arange(24, dtype=np.float32).reshape(4, 6),
        "flag": np.array(True),
    },
    {"format": "pt"},
)
# Numbers on which unchecked arithmetic fails: zero, sign bits, the limits of 32 and 64 bits.
NASTY = [0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 61, 1 << 63, (1 << 64) - 1]


def survive(reader: Callable[[Path], Checkpoint], data: bytes) -> Checkpoint | None:
    """Open the file and read all of it; any error but CheckpointError fails the test."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        path.write_bytes(data)
        try:
            checkpoint = reader(path)
        except CheckpointError:
            return None
        for name, info in checkpoint.tensors.items():
            assert 0 <= info.offset <= info.end <= len(data)
            assert checkpoint.read(name).nbytes == info.num_bytes
            assert checkpoint.read_float32(name).shape == info.shape
        for key in checkpoint.metadata:
            try:
                value = checkpoint.metadata[key]
            except CheckpointError:
                continue  # invalid UTF-8 or a boolean of 2, detected on access
            assert len(value) <= len(data) if isinstance(value, str | list) else value is not None
        return checkpoint


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw a valid file with bytes changed, numbers replaced, or a piece removed or doubled."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "u32", "u64", "cut", "remove", "double"]))
        length = draw(st.integers(1, 40))
        if kind == "flip":
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind in ("u32", "u64"):
            number = struct.pack("<Q", draw(st.sampled_from(NASTY)))[: int(kind[1:]) // 8]
            data[at : at + len(number)] = number
        elif kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + length]
        else:
            data[at:at] = data[at : at + length]
    return bytes(data)


def test_the_unchanged_files_are_valid() -> None:
    for reader, data in ((open_gguf, GGUF), (open_safetensors, SAFETENSORS)):
        checkpoint = survive(reader, data)
        assert checkpoint is not None
        assert len(checkpoint) == 3


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    survive(open_gguf, data)
    survive(open_safetensors, data)


@given(st.binary(max_size=200))
def test_any_bytes_after_a_good_start(data: bytes) -> None:
    survive(open_gguf, GGUF[:8] + data)
    survive(open_gguf, GGUF[:8] + struct.pack("<QQ", 1, 1) + data)
    survive(open_safetensors, with_header(b"{" + data))


@given(mutated(GGUF))
def test_mutated_gguf(data: bytes) -> None:
    survive(open_gguf, data)


@given(mutated(SAFETENSORS))
def test_mutated_safetensors(data: bytes) -> None:
    survive(open_safetensors, data)


@given(st.integers(0, len(GGUF) - 8), st.sampled_from(NASTY), st.sampled_from(["<I", "<Q"]))
def test_every_number_of_a_gguf_replaced(at: int, number: int, form: str) -> None:
    stored = struct.pack("<Q", number)[: struct.calcsize(form)]
    survive(open_gguf, GGUF[:at] + stored + GGUF[at + len(stored) :])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
SIZES = st.integers(0, 6) | st.sampled_from([*NASTY, -1, 10**40])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "BOOL", "F99"]) | JSON,
        "shape": st.lists(SIZES, max_size=4) | JSON,
        "data_offsets": st.lists(SIZES, min_size=2, max_size=2) | JSON,
    }
)


@given(st.dictionaries(st.text(max_size=4), ENTRIES | JSON, max_size=3), st.integers(0, 30))
def test_any_header(header: dict[str, object], num_bytes: int) -> None:
    survive(open_safetensors, with_header(json.dumps(header).encode(), bytes(num_bytes)))


@given(st.dictionaries(st.sampled_from(["weight_map", "metadata"]), JSON))
def test_any_index(index: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors.index.json"
        path.write_text(json.dumps(index))
        try:
            owners = read_index(path)
        except CheckpointError:
            return
        assert all(Path(shard).name == shard for shard in owners.values())


@pytest.mark.parametrize("number", NASTY[5:])
def test_huge_counts_take_no_memory(number: int) -> None:
    """A count that is too large is refused before memory is allocated for it."""
    stored = struct.pack("<Q", number)
    tracemalloc.start()
    try:
        for at in range(8, 400, 4):
            survive(open_gguf, GGUF[:at] + stored + GGUF[at + 8 :])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20  # with what threads of other tests take meanwhile
