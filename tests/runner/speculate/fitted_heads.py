"""Drafters that read hidden states, fitted to a tiny model, so that many of their drafts are right.

What a tiny model computes of a token follows mostly from the token itself. So the state that a
drafter has to foresee is nearly linear in the token's embedding, and least squares find it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo import LLM, PoolingParams
from tests.runner.speculate.head_files import (
    HIDDEN,
    VOCABULARY,
    load,
    make_eagle,
    make_eagle3,
    save,
)

Matrix = NDArray[np.float64]

NUM_TEXTS, TEXT_TOKENS = 24, 100
NUM_DRAFTED = 290  # tokens of EAGLE-3's own vocabulary
SMALL = np.float32(0.02)  # of parts that are not fitted: they take part, and change little
SHARPNESS = 10.0  # of attention, which then reads the token itself


def fit_eagle(model: Path, made_in: Path) -> Path:
    """Write an EAGLE drafter whose projection foresees the model's last hidden state."""
    tokens, states = _texts_of(model)
    table = load(model)[1]["model.embed_tokens.weight"].astype(np.float64)
    read = np.concatenate((table[tokens[:, 1:]], states[:, :-1]), -1).reshape(-1, 2 * HIDDEN)
    config, tensors = load(make_eagle(made_in, scale=float(SMALL)))
    found = _solve(np.concatenate((read, np.ones((len(read), 1))), 1), states[:, 1:])
    tensors |= {"fc.weight": _transposed(found[:-1]), "fc.bias": found[-1].astype(np.float32)}
    return save(made_in, config, tensors)


def fit_eagle3(model: Path, made_in: Path) -> Path:
    """Write an EAGLE-3 drafter whose attention reads the token itself, and its state from that."""
    tokens, states = _texts_of(model)
    weights = load(model)[1]
    table = weights["model.embed_tokens.weight"].astype(np.float64)
    normed = table / np.sqrt((table**2).mean(-1, keepdims=True) + 1e-5)
    config, tensors = load(make_eagle3(made_in, own=NUM_DRAFTED, kv_heads=4))
    layer, own = "midlayer.self_attn.", np.eye(HIDDEN, dtype=np.float32)
    for name, factor in (("q_proj", SHARPNESS**0.5), ("k_proj", SHARPNESS**0.5), ("v_proj", 1.0)):
        matrix = tensors[f"{layer}{name}.weight"]
        matrix[:, :HIDDEN], matrix[:, HIDDEN:] = factor * own, SMALL * matrix[:, HIDDEN:]
    found = _solve(normed[tokens].reshape(-1, HIDDEN), states)
    tensors[f"{layer}o_proj.weight"] = _transposed(found)
    for name in ("fc", "midlayer.mlp.down_proj"):
        tensors[f"{name}.weight"] *= SMALL
    for name in ("midlayer.input_layernorm", "norm"):
        tensors[f"{name}.weight"][:] = 1.0
    drafted = tensors["d2t"] + np.arange(NUM_DRAFTED)
    tensors["lm_head.weight"] = np.ascontiguousarray(weights["lm_head.weight"][drafted])
    return save(made_in, config, tensors)


FITTED: dict[str, Callable[[Path, Path], Path]] = {"eagle3": fit_eagle3, "eagle": fit_eagle}


def _texts_of(model: Path) -> tuple[NDArray[np.int64], Matrix]:
    """Return texts of random tokens, and the model's last hidden state of each token."""
    generator = np.random.default_rng(3)
    tokens = generator.integers(2, VOCABULARY, (NUM_TEXTS, TEXT_TOKENS))
    with LLM(str(model), dtype="float32", backend="native", max_num_seqs=8) as llm:
        outputs = llm.encode(
            [{"prompt_token_ids": text} for text in tokens.tolist()],
            PoolingParams(use_activation=False),
            pooling_task="token_embed",
            use_tqdm=False,
        )
    states = np.array([output.outputs.data for output in outputs], np.float64)
    return tokens, states


def _transposed(matrix: Matrix) -> NDArray[np.float32]:
    return np.ascontiguousarray(matrix.T, np.float32)


def _solve(read: Matrix, states: Matrix) -> Matrix:
    found = np.linalg.lstsq(read, states.reshape(-1, HIDDEN), rcond=None)[0]
    return found.astype(np.float64)
