"""Small checkpoints that the reader tests share."""

from pathlib import Path

import numpy as np
import pytest

from tests.loader import make_files
from tests.loader.make_files import ARRAY, BOOL, F32, F64, I32, STRING, U8, U32, GGUFTensor

PAIRS = [
    ("general.architecture", STRING, "llama"),
    ("general.name", STRING, "Größe 😀"),
    ("llama.block_count", U32, 2),
    ("llama.rope.freq_base", F32, 10000.0),
    ("llama.epsilon", F64, 1e-5),
    ("tokenizer.ggml.add_bos_token", BOOL, True),
    ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "", "ä", "x" * 300])),
    ("tokenizer.ggml.scores", ARRAY, (F32, [0.0, -1.5, 2.0, 0.25])),
    ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 1, 1, -1])),
    ("flags", ARRAY, (BOOL, [True, False])),
    ("empty", ARRAY, (STRING, [])),
    ("bytes", ARRAY, (U8, [1, 2, 255])),
]


def gguf_tensors() -> list[GGUFTensor]:
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 64, 3 * 2 * 18, dtype=np.uint8).tobytes()
    return [
        make_files.f32_tensor("norm", np.arange(5, dtype=np.float32)),
        GGUFTensor("weight", (64, 3), 2, blocks),
        GGUFTensor("half", (2, 2, 2), 1, np.arange(8, dtype=np.float16).tobytes()),
    ]


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    return make_files.write_gguf(tmp_path / "model.gguf", PAIRS, gguf_tensors())
