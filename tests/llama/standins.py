"""Models in the place of those that llama.cpp's tests download: as small, of random weights.

Their vocabulary is llama.cpp's own kind, with pieces found in English prose. Control tokens and
bytes are never likely, so that answers are text of the length that was asked for; what they say is
noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.llama.encoders import make_encoders
from tests.loader.make_files import ARRAY, F32, I32, STRING, U32, f32_tensor, write_gguf

Array = NDArray[np.float32]
PROSE = Path(__file__).parents[2] / "benchmarks" / "prose.txt"
NUM_PIECES, NUM_LAYERS, HIDDEN, FFN, HEADS, KV_HEADS = 400, 3, 64, 172, 8, 4
CONTEXT = 32_768
ADAPTER, RANK = "adapter.gguf", 4
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
FILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_SPACE = "▁"
_WHOLE = f"{_SPACE}Hello"
_UNLIKELY = -40.0  # the logit of control tokens and bytes
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_all(folder: Path, checkout: Path) -> None:
    """Write the files that are missing; each has the same bytes every time.

    The vocabulary of the encoders is in the checkout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, dict[str, Any]] = {
        "stories.gguf": {},
        "infill.gguf": {"special": FILL},
        "experts.gguf": {"experts": 4},
    }
    for name, options in kinds.items():
        if not (folder / name).is_file():
            part = folder / f"{name}.part"
            write_model(part, **options)
            part.rename(folder / name)
    if not (folder / ADAPTER).is_file():
        part = folder / f"{ADAPTER}.part"
        write_adapter(part)
        part.rename(folder / ADAPTER)
    make_encoders(folder, checkout / "models" / "ggml-vocab-bert-bge.gguf")


def write_adapter(path: Path) -> None:
    """Write an adapter of random pairs for the queries of such a model as a GGUF file."""
    random = np.random.default_rng(5)
    pairs: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, "llama"),
        ("general.type", STRING, "adapter"),
        ("adapter.type", STRING, "lora"),
        ("adapter.lora.alpha", F32, float(RANK)),
    ]
    tensors = []
    for layer in range(NUM_LAYERS):
        name = f"blk.{layer}.attn_q.weight"
        for half, shape in (("a", (RANK, HIDDEN)), ("b", (HIDDEN, RANK))):
            drawn = (random.standard_normal(shape) / HIDDEN**0.5).astype(np.float32)
            tensors.append(f32_tensor(f"{name}.lora_{half}", drawn))
    write_gguf(path, pairs, tensors)


def write_model(path: Path, special: tuple[str, ...] = (), experts: int = 0) -> None:
    """Write a model of random weights as a GGUF file."""
    pieces, scores, kinds = vocabulary(special)
    pairs: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, "llama"),
        ("general.name", STRING, path.stem),
        ("llama.context_length", U32, CONTEXT),
        ("llama.embedding_length", U32, HIDDEN),
        ("llama.block_count", U32, NUM_LAYERS),
        ("llama.feed_forward_length", U32, FFN),
        ("llama.attention.head_count", U32, HEADS),
        ("llama.attention.head_count_kv", U32, KV_HEADS),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.dimension_count", U32, HIDDEN // HEADS),
        ("llama.vocab_size", U32, NUM_PIECES),
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, pieces)),
        ("tokenizer.ggml.scores", ARRAY, (F32, scores)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
        ("tokenizer.ggml.bos_token_id", U32, 1),
        ("tokenizer.ggml.eos_token_id", U32, 2),
        ("tokenizer.ggml.unknown_token_id", U32, 0),
        ("tokenizer.chat_template", STRING, TEMPLATE),
    ]
    if experts:
        pairs += [("llama.expert_count", U32, experts), ("llama.expert_used_count", U32, 2)]
    for key, piece in zip(("prefix", "suffix", "middle"), special, strict=False):
        pairs.append((f"tokenizer.ggml.{key}_token_id", U32, pieces.index(piece)))
        pairs.append((f"tokenizer.ggml.fim_{key[:3]}_token_id", U32, pieces.index(piece)))
    tensors = [f32_tensor(name, array) for name, array in weights(kinds, experts)]
    write_gguf(path, pairs, tensors)


def vocabulary(special: tuple[str, ...]) -> tuple[list[str], list[float], list[int]]:
    """Return the pieces with their scores and kinds."""
    controls = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{each:02X}>" for each in range(256)]
    found = _pieces(NUM_PIECES - len(controls) - len(bytes_) - len(special))
    pieces = [*controls, *bytes_, *found, *special]
    kinds = [UNKNOWN, CONTROL, CONTROL]
    kinds += [BYTE] * len(bytes_) + [NORMAL] * len(found) + [CONTROL] * len(special)
    scores = [0.0] * (len(controls) + len(bytes_))
    scores += [-float(rank) for rank in range(len(found))] + [0.0] * len(special)
    return pieces, scores, kinds


def _pieces(count: int) -> list[str]:
    """Return pieces by byte-pair merging of the prose, those merged first in front."""
    words = Counter(_SPACE + word for word in PROSE.read_text("utf-8")[:20_000].split())
    words[_WHOLE] += len(words)  # of which prompts as long as the context are made
    parts: dict[str, list[str]] = {word: list(word) for word in words}
    letters = sorted({letter for word in words for letter in word} - {"\ufeff"})
    letters = [each for each in letters if each.isascii() or each == _SPACE]
    merged: list[str] = []
    while len(merged) + len(letters) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in zip(parts[word], parts[word][1:], strict=False):
                if pair[0].isascii() or pair[0].startswith(_SPACE):
                    pairs[pair] += times
        left, right = max(sorted(pairs), key=lambda pair: pairs[pair])
        merged.append(left + right)
        parts = {word: _joined(listed, left, right) for word, listed in parts.items()}
    return [*merged, *letters]


def _joined(parts: list[str], left: str, right: str) -> list[str]:
    """Return the parts with each occurrence of two of them in one."""
    made: list[str] = []
    for part in parts:
        if made and part == right and made[-1] == left:
            made[-1] = left + right
        else:
            made.append(part)
    return made


def weights(kinds: list[int], experts: int) -> Iterator[tuple[str, Array]]:
    """Yield random weights. The first of the hidden numbers is the same for all tokens."""
    random = np.random.default_rng(42)

    def matrix(*shape: int, scale: float = 1.0) -> Array:
        drawn = random.standard_normal(shape) * (scale / shape[-1] ** 0.5)
        return drawn.astype(np.float32)

    def out(*shape: int) -> Array:
        """Return a matrix that leaves the first hidden number alone."""
        drawn = matrix(*shape)
        drawn[..., 0, :] = 0
        return drawn

    embedding = matrix(len(kinds), HIDDEN, scale=HIDDEN**0.5)
    embedding[:, 0] = HIDDEN**0.5
    head = matrix(len(kinds), HIDDEN, scale=3)
    head[:, 0] = [0 if kind == NORMAL else _UNLIKELY for kind in kinds]
    ones = np.ones(HIDDEN, np.float32)
    kv = HIDDEN // HEADS * KV_HEADS
    yield "token_embd.weight", embedding
    yield "output.weight", head
    yield "output_norm.weight", ones
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", ones
        yield f"{block}.ffn_norm.weight", ones
        yield f"{block}.attn_q.weight", matrix(HIDDEN, HIDDEN)
        yield f"{block}.attn_k.weight", matrix(kv, HIDDEN)
        yield f"{block}.attn_v.weight", matrix(kv, HIDDEN)
        yield f"{block}.attn_output.weight", out(HIDDEN, HIDDEN)
        if experts:
            yield f"{block}.ffn_gate_inp.weight", matrix(experts, HIDDEN)
            yield f"{block}.ffn_gate_exps.weight", matrix(experts, FFN, HIDDEN)
            yield f"{block}.ffn_up_exps.weight", matrix(experts, FFN, HIDDEN)
            yield f"{block}.ffn_down_exps.weight", out(experts, HIDDEN, FFN)
        else:
            yield f"{block}.ffn_gate.weight", matrix(FFN, HIDDEN)
            yield f"{block}.ffn_up.weight", matrix(FFN, HIDDEN)
            yield f"{block}.ffn_down.weight", out(HIDDEN, FFN)


STANDINS: Mapping[str, str] = {
    "ggml-org/test-model-stories260K": "stories.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/stories15M_MOE": "experts.gguf",
    "ggml-org/models/bert-bge-small/ggml-model-f16.gguf": "vectors",
    "ggml-org/models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "scores",
    "ggml-org/models/tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": "stories.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "stories.gguf",
}
# Of files that the tests download beside their models, those that have a stand-in.
FILES: Mapping[str, str] = {
    "stories15M-q4_0.gguf": "stories.gguf",
    "moe_shakespeare15M.gguf": ADAPTER,
}
