"""Texts of models that keep latent rows or states go on in a new engine as if none had been killed.

The expected tokens are those of each request alone, with whole prompts and without a prefix cache.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.api.outputs import RequestOutput
from tests.api.tiny import make_tokenizer_files
from tests.client.clients import patient, process_of

pytestmark = pytest.mark.slow
NUM_REQUESTS = 12
NUM_KILLS = {"native": 2, "torch": 1}  # starting torch takes seconds
COMMON = [number % 250 + 5 for number in range(0, 490, 7)]  # more than four blocks
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def make_config(kind: str) -> Any:
    """Make the configuration of a small model that keeps KV of this kind."""
    from transformers import DeepseekV3Config, Lfm2Config

    if kind == "latent":
        return DeepseekV3Config(**SIZES, **LATENT)
    layers = ["conv", "full_attention", "conv"]
    return Lfm2Config(**SIZES, num_key_value_heads=2, layer_types=layers, block_multiple_of=16)


def make_model(directory: Path, kind: str) -> str:
    """Write a model whose weights are so large that what it keeps decides each token."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(make_config(kind), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 2.0 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    return str(make_tokenizer_files(directory))


def prompt_of(number: int) -> list[int]:
    """Return a prompt that begins as the others do, and ends otherwise."""
    return [*COMMON[: 70 - number % 3], *(5 + (number * 31 + step * 17) % 250 for step in range(9))]


def sampling_of(number: int) -> SamplingParams:
    temperature = 0.0 if number % 4 == 0 else 1.0
    return SamplingParams(max_tokens=60, seed=number, temperature=temperature, ignore_eos=True)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("kind", ["latent", "state"])
def test_texts_survive_kill_9(tmp_path: Path, kind: str, backend: str) -> None:
    """Engines are killed in the middle of texts with shared prefixes, chunks and preemptions."""
    pytest.importorskip("torch")
    model = make_model(tmp_path, kind)
    usual: dict[str, Any] = {"backend": backend, "max_model_len": 160}
    if backend == "native":
        usual["num_threads"] = 1
    alone = LLM(model, enable_prefix_caching=False, **usual)
    expected = [
        list(alone.generate(prompt_of(n), sampling_of(n), use_tqdm=False)[0].outputs[0].token_ids)
        for n in range(NUM_REQUESTS)
    ]
    assert len({tuple(tokens) for tokens in expected}) == NUM_REQUESTS
    del alone
    llm = AsyncLLM(
        model,
        engine="process",
        timing=patient(),
        max_num_batched_tokens=24,
        num_gpu_blocks_override=36,
        **usual,
    )
    client: Any = llm._client
    restarts = client.engines[0].supervisor.restarts
    seen = 0

    async def one(number: int, is_killing: bool) -> RequestOutput:
        nonlocal seen
        last = None
        async for output in llm.generate(prompt_of(number), sampling_of(number)):
            last = output
            seen += 1
            if is_killing and seen % 150 == 0 and restarts.num_restarts < NUM_KILLS[backend]:
                process_of(client).send_signal(signal.SIGKILL)
        assert last is not None
        return last

    async def round_of(is_killing: bool) -> list[RequestOutput]:
        outputs = await asyncio.gather(*(one(n, is_killing) for n in range(NUM_REQUESTS)))
        assert [list(output.outputs[0].token_ids) for output in outputs] == expected
        return outputs

    async def world() -> None:
        outputs = await round_of(False)
        # An engine may have generated everything before the first outputs are read: try again.
        while restarts.num_restarts < NUM_KILLS[backend]:
            outputs += await round_of(True)
        stats = [output.metrics for output in outputs if output.metrics is not None]
        assert sum(each.num_preemptions for each in stats) > 0
        assert sum(each.num_cached_tokens for each in stats) > 0

    try:
        asyncio.run(world())
    finally:
        llm.close()
