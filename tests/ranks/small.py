"""Small models of each kind, and what an engine in this process makes of a set of requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from octavo import LLM, SamplerOptions, SamplingParams
from octavo.core.snapshot import EngineSnapshot, take_snapshot
from tests.models.made_up import LATENT
from tests.quantize.made import write_model

WINDOWS = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 20,
    "query_pre_attn_scalar": 16,
    "head_dim": 16,
}
# One of each kind: what it is made with beside its sizes.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "LlamaForCausalLM": {},  # dense, biases, one matrix for the table and the head
    "GPT2LMHeadModel": {"n_embd": 64, "vocab_size": 300},  # positions by a table
    "Gemma2ForCausalLM": WINDOWS,  # windows, limits of scores and logits
    "Olmo2ForCausalLM": {},  # norms over all heads together
    "FalconForCausalLM": {},  # one KV head, for more ranks than that
    # Experts, and one that is shared. Of so many chosen ones the order of sums can be seen.
    "Qwen2MoeForCausalLM": {"num_experts": 8, "num_experts_per_tok": 4},
    "GptOssForCausalLM": {},  # experts with biases, sinks
    "DeepseekV3ForCausalLM": {**LATENT, "q_lora_rank": 24, "n_group": 2, "topk_group": 1},
    "Lfm2ForCausalLM": {},  # states
}
MIXTURES = ("Qwen2MoeForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM")
# Weights and KV as the native engine keeps them, beside the file's own bf16.
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {},
    "exact": {"dtype": "float32"},
    "int8": {"cpu_weights": "int8", "kv_cache_dtype": "int8"},
    "int4": {"cpu_weights": "int4"},
}
# Memory for few sequences, and steps of few rows: prompts are cut, and sequences preempted.
TIGHT: dict[str, Any] = {
    "num_threads": 1,
    "num_gpu_blocks_override": 9,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
}
WITH_STATE = SamplerOptions(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.5)
SHARED = [3 + 7 * j % 90 for j in range(32)]  # a prefix that several prompts have
PROMPTS = [
    [4, 5, 6],
    [*SHARED, 40],
    [3 + 5 * j % 90 for j in range(27)],
    [*SHARED, 41, 42],
    [50],
    [*SHARED[:16], 43],
]


def write(directory: Path, kind: str) -> Path:
    """Write a model of the kind, unless it is there already."""
    path = directory / kind
    return path if path.exists() else write_model(path, kind, **KINDS[kind])


def sampling(index: int) -> SamplingParams:
    """Return the settings of a request: every second one is greedy, and the fifth has a state."""
    return SamplingParams(
        max_tokens=18,
        temperature=0.0 if index % 2 else 1.0,
        seed=index,
        logprobs=2,
        prompt_logprobs=1 if index == 2 else None,
        ignore_eos=True,
        sampler_options=WITH_STATE if index == 4 else None,
    )


def answers(model: Path, **options: Any) -> tuple[list[Any], EngineSnapshot]:
    """Generate for all prompts twice; return tokens and log-probabilities, and the statistics."""
    settings = [sampling(index) for index in range(len(PROMPTS))]
    found: list[Any] = []
    with LLM(str(model), **{**TIGHT, **options}) as llm:
        for _ in range(2):  # the second time, prefixes are cached
            outputs = llm.generate(PROMPTS, settings, use_tqdm=False)
            found += [
                (each.outputs[0].token_ids, each.outputs[0].logprobs, each.prompt_logprobs)
                for each in outputs
            ]
        snapshot = take_snapshot(llm._model.engine.core, time.monotonic())
    return found, snapshot


@cache
def alone(directory: Path, kind: str, format_: str) -> list[Any]:
    """Return the answers of one process with one thread."""
    return answers(write(directory, kind), **FORMATS[format_])[0]


def long_answers(directory: Path, kind: str, **options: Any) -> Any:
    """Generate behind a prompt of several runs of 512 positions; return the log-probabilities."""
    path = directory / f"long {kind}"
    if not path.exists():
        write_model(path, kind, **{**KINDS[kind], "max_position_embeddings": 2048})
    prompt = [3 + 7 * j % 90 for j in range(1400)]
    settings = SamplingParams(max_tokens=20, temperature=0.0, logprobs=2, ignore_eos=True)
    sizes: dict[str, Any] = {"num_threads": 1, "max_num_seqs": 1, "max_num_batched_tokens": 256}
    with LLM(str(path), num_gpu_blocks_override=140, **sizes, **options) as llm:
        (output,) = llm.generate([prompt], settings, use_tqdm=False)
    return output.outputs[0].logprobs
