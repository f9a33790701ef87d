"""Drafters that read hidden states, fitted to a tiny model, so that many of their drafts are right.

What a tiny model computes of a token follows mostly from the token itself. So the state that a
drafter has to foresee is nearly linear in the token's embedding, and least squares find it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo import LLM, PoolingParams, SamplingParams
from tests.runner.speculate.dflash.files import MASK, make_dflash
from tests.runner.speculate.head_files import (
    HIDDEN,
    VOCABULARY,
    load,
    make_eagle,
    make_eagle3,
    save,
)
from tests.runner.speculate.medusa.files import MEDUSA_FILE, NUM_HEADS, make_medusa
from tests.runner.speculate.mtp_files import MIMO_LAYER

Matrix = NDArray[np.float64]

NUM_TEXTS, TEXT_TOKENS = 24, 100
NUM_DRAFTED = 290  # tokens of EAGLE-3's own vocabulary
SMALL = np.float32(0.02)  # of parts that are not fitted: they take part, and change little
CONFIDENCE = 80.0  # of heads: what makes scores of chances
BLOCK_ROWS = 5  # of a block of DFlash, whose MLP is wide: it knows what follows each token
FFN_OF_BLOCK = 640
LOUDNESS = np.float32(10.0)  # of the first token of a block in the rows of the others
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
    normed = _unit(table)
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


def fit_medusa(model: Path, made_in: Path) -> Path:
    """Write Medusa heads that know what the model mostly says after a state."""
    tokens = _said_by(model)
    states = _states_of(model, tokens)
    made = make_medusa(made_in)
    config, tensors = load(made, MEDUSA_FILE)
    for head in range(NUM_HEADS):
        behind = tokens[:, head + 2 :]  # the state of a token foresees those from the second on
        x = states[:, : behind.shape[1]].reshape(-1, HIDDEN)
        layer = x @ tensors[f"{head}.0.linear.weight"].T + tensors[f"{head}.0.linear.bias"]
        said = np.eye(VOCABULARY)[behind.reshape(-1)]
        found = np.linalg.lstsq(x + layer / (1 + np.exp(-layer)), said, rcond=None)[0]
        tensors[f"{head}.1.weight"] = _transposed(CONFIDENCE * found)
    return save(made, config, tensors, MEDUSA_FILE)


def fit_dflash(model: Path, made_in: Path) -> Path:
    """Write a DFlash drafter whose MLP foresees the states of a block from its first token.

    Its attention reads all rows of a block, and what of the context is in a window of that size,
    alike; the context counts little.
    """
    tokens = _said_by(model)
    states = _states_of(model, tokens)
    config, tensors = load(make_dflash(made_in, layers=1, kv_heads=4, ffn=FFN_OF_BLOCK))
    layer, table = "layers.0.", load(model)[1]["model.embed_tokens.weight"].astype(np.float64)
    attention, mask = f"{layer}self_attn.", _unit(table[MASK])
    other = np.eye(HIDDEN) - np.outer(mask, mask) / HIDDEN  # of a row what is no mask's
    tensors[f"{attention}v_proj.weight"] = other.astype(np.float32)
    tensors[f"{attention}o_proj.weight"] = LOUDNESS * np.eye(HIDDEN, dtype=np.float32)
    tensors[f"{attention}q_proj.weight"] *= np.float32(0)
    for name in ("norm", f"{layer}input_layernorm", f"{layer}post_attention_layernorm"):
        tensors[f"{name}.weight"][:] = 1.0
    tensors["hidden_norm.weight"][:] = SMALL / LOUDNESS
    read, foreseen = [], []
    for place in range(1, BLOCK_ROWS):
        begun = np.arange(BLOCK_ROWS, TEXT_TOKENS - place)
        count = 2 * BLOCK_ROWS - 1 - place  # of the positions that this row reads
        read.append(table[MASK] + LOUDNESS * (_unit(table[tokens[:, begun]]) @ other) / count)
        foreseen.append(_unit(states[:, begun + place - 1]))
    x = np.concatenate(read, 1).reshape(-1, HIDDEN)
    gate, up = (_unit(x) @ tensors[f"{layer}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    wanted = np.concatenate(foreseen, 1).reshape(-1, HIDDEN) - x
    found = np.linalg.lstsq(gate / (1 + np.exp(-gate)) * up, wanted, rcond=None)[0]
    tensors[f"{layer}mlp.down_proj.weight"] = _transposed(found)
    windows = {"layer_types": ["sliding_attention"], "sliding_window": BLOCK_ROWS, "causal": False}
    return save(made_in, {**config, **windows}, tensors)


def fit_own_layer(model: Path) -> Path:
    """Fit the layer in the files of a model of MiMo's kind, so that its block changes little."""
    config, tensors = load(model)
    tokens, states = _texts_of(model)
    table = tensors["model.embed_tokens.weight"].astype(np.float64)[tokens[:, 1:]]
    read = np.concatenate((_unit(states[:, :-1]), _unit(table)), -1).reshape(-1, 2 * HIDDEN)
    layer, norm = f"{MIMO_LAYER}.", tensors["model.norm.weight"]
    for name in ("token_layernorm", "hidden_layernorm"):
        tensors[f"{layer}{name}.weight"][:] = 1.0
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"{layer}{name}.weight"] *= SMALL
    tensors[f"{layer}final_layernorm.weight"] = norm.copy()
    tensors[f"{layer}input_proj.weight"] = _transposed(_solve(read, states[:, 1:] / norm))
    return save(model, config, tensors)


def _unit(x: Matrix) -> Matrix:
    found: Matrix = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return found


FITTED: dict[str, Callable[[Path, Path], Path]] = {
    "eagle3": fit_eagle3,
    "eagle": fit_eagle,
    "medusa": fit_medusa,
    "dflash": fit_dflash,
}


def _texts_of(model: Path) -> tuple[NDArray[np.int64], Matrix]:
    """Return texts of random tokens, and the model's last hidden state of each token."""
    generator = np.random.default_rng(3)
    tokens = generator.integers(2, VOCABULARY, (NUM_TEXTS, TEXT_TOKENS))
    return tokens, _states_of(model, tokens)


def _said_by(model: Path) -> NDArray[np.int64]:
    """Return texts that the model says by itself, behind random tokens."""
    generator = np.random.default_rng(5)
    begun = generator.integers(2, VOCABULARY, (4 * NUM_TEXTS, 4)).tolist()
    prompts = [{"prompt_token_ids": text} for text in begun]
    count = TEXT_TOKENS - len(begun[0])
    sampling = SamplingParams(temperature=0.3, seed=1, max_tokens=count, ignore_eos=True)
    with _engine(model) as llm:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    said = [output.outputs[0].token_ids for output in outputs]
    return np.array([[*one, *other] for one, other in zip(begun, said, strict=True)])


def _states_of(model: Path, tokens: NDArray[np.int64]) -> Matrix:
    with _engine(model) as llm:
        outputs = llm.encode(
            [{"prompt_token_ids": text} for text in tokens.tolist()],
            PoolingParams(use_activation=False),
            pooling_task="token_embed",
            use_tqdm=False,
        )
    return np.array([output.outputs.data for output in outputs], np.float64)


def _engine(model: Path) -> LLM:
    return LLM(str(model), dtype="float32", backend="native", max_num_seqs=32)


def _transposed(matrix: Matrix) -> NDArray[np.float32]:
    return np.ascontiguousarray(matrix.T, np.float32)


def _solve(read: Matrix, states: Matrix) -> Matrix:
    found = np.linalg.lstsq(read, states.reshape(-1, HIDDEN), rcond=None)[0]
    return found.astype(np.float64)
