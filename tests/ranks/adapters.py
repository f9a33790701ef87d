"""Adapters of each kind for a small model, and what an engine makes of requests that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from octavo import LLM, LoRARequest
from octavo.layers import Model
from octavo.loader import resolve
from octavo.models.load import open_model
from tests.adapters.made import Arrays, make_arrays, modules_of, write_adapter
from tests.ranks.small import PROMPTS, TIGHT, sampling

# Fewer places in a step, and in memory, than there are adapters: they come and go.
SETTINGS: dict[str, Any] = {
    "enable_lora": True,
    "max_loras": 2,
    "max_cpu_loras": 3,
    "max_lora_rank": 8,
    "max_saved_loras": 1,
}
_EMBED, _HEAD = "base_model.model.model.embed_tokens", "base_model.model.lm_head"
_QUERY = "base_model.model.model.layers.1.self_attn.q_proj"


class _Adapter(NamedTuple):
    arrays: Arrays
    settings: dict[str, Any]


def write_all(model: Path, directory: Path) -> list[Path]:
    """Write adapters of which each changes the model in another way; return where they are.

    Those that change the table of tokens and the head are for models named as Llama's are.
    """
    opened = open_model(resolve(str(model)), None, None).model
    return [
        write_adapter(directory / f"{number}", each.arrays, **each.settings)
        for number, each in enumerate(_each_kind(opened))
    ]


def write_many(model: Path, directory: Path, count: int) -> list[Path]:
    """Write so many adapters of all projections, with different numbers."""
    modules = list(modules_of(open_model(resolve(str(model)), None, None).model))
    return [
        write_adapter(directory / f"{seed}", make_arrays(modules, seed=seed))
        for seed in range(count)
    ]


def _each_kind(model: Model) -> list[_Adapter]:
    every = list(modules_of(model))
    blocks = [each for each in every if each.name != "lm_head"]
    of_attention = blocks[:2]
    magnitudes = make_arrays(blocks, seed=2)
    for each in blocks:
        stem = f"base_model.model.{each.name}"
        magnitudes[f"{stem}.lora_magnitude_vector"] = 1 + _numbers(each.outputs)
    of_blocks = [
        _Adapter(make_arrays(blocks, seed=0), {}),
        _Adapter(make_arrays(of_attention, seed=1, dtype=ml_dtypes.bfloat16), {"lora_alpha": 16}),
        _Adapter(magnitudes, {"use_dora": True}),
    ]
    return of_blocks + (
        _of_tables(model) if any("self_attn.q_proj" in each.name for each in every) else []
    )


def _of_tables(model: Model) -> list[_Adapter]:
    words, hidden = model.embed.vocabulary, model.embed.hidden
    tables = {
        f"{_EMBED}.lora_embedding_A": _numbers(4, words),
        f"{_EMBED}.lora_embedding_B": _numbers(hidden, 4),
        f"{_HEAD}.lora_A.weight": _numbers(4, hidden),
        f"{_HEAD}.lora_B.weight": _numbers(words, 4),
    }
    saved = {
        f"{_EMBED}.weight": _numbers(words, hidden),
        f"{_HEAD}.weight": _numbers(words, hidden),
        f"{_QUERY}.lora_A.weight": _numbers(8, hidden),
        f"{_QUERY}.lora_B.weight": _numbers(hidden, 8),
    }
    return [
        _Adapter(tables, {}),
        _Adapter(saved, {"r": 8, "modules_to_save": ["embed_tokens", "lm_head"]}),
    ]


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) / 8


def requests_of(adapters: list[Path]) -> list[LoRARequest | None]:
    """Return what names none, and then each adapter."""
    named = [LoRARequest(path.name, 1 + at, str(path)) for at, path in enumerate(adapters)]
    return [None, *named]


def answers(model: Path, adapters: list[Path], **options: Any) -> list[Any]:
    """Generate for two prompts, with none and with each adapter, all in one batch."""
    asked = requests_of(adapters)
    texts = range(1, 3)
    prompts = [PROMPTS[text] for text in texts for _ in asked]
    settings = [sampling(text) for text in texts for _ in asked]
    with LLM(str(model), **{**TIGHT, **SETTINGS, **options}) as llm:
        outputs = llm.generate(prompts, settings, use_tqdm=False, lora_request=[*asked, *asked])
    found = [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]
    assert all(tokens for tokens, _ in found)
    return found
