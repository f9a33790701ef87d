"""Small models with random weights and without files, for tests that need no reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from octavo.backends.stored_rows import Floats, StoredRows
from octavo.layers import CausalLM, Model
from octavo.models.config_reader import Config
from octavo.models.needs import find_needs
from octavo.models.registry import ENCODER_TASKS, FAMILIES, family_of

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "GPTNeoXForCausalLM": {},
    "StableLmForCausalLM": {"qk_layernorm": True},
    "FalconForCausalLM": {"multi_query": True, "bias": True},
    "Qwen2MoeForCausalLM": EXPERTS,
    "GptOssForCausalLM": {**EXPERTS, "sliding_window": 5},
    "Lfm2ForCausalLM": {"full_attn_idxs": [1], "block_multiple_of": 8},
    "DeepseekV2ForCausalLM": {**LATENT, "first_k_dense_replace": 0},
    "DeepseekV3ForCausalLM": {**LATENT, "q_lora_rank": 24, "n_group": 2, "topk_group": 1},
}
ENCODER_CONFIGS: dict[str, dict[str, Any]] = {
    f"DistilBert{task}": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    for task in ENCODER_TASKS
}

# Architectures that read texts from left to right; tests/models/test_encoders.py has the others.
DECODERS = [
    name
    for name in FAMILIES
    if issubclass(family_of(name), CausalLM)  # type: ignore[arg-type]
]


def make_model(architecture: str, **more: Any) -> Model:
    """Declare a small model of an architecture, not yet bound."""
    values = {**SIZES, **CONFIGS.get(architecture, more), "architectures": [architecture]}
    family = family_of(architecture)
    return family(family.read(Config(values)))


class MadeUpWeights:
    """Random values for all tensors that a model needs, under the checkpoint's names."""

    def __init__(self, model: Model, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.tensors: dict[str, Floats] = {}
        for need in find_needs(model, ()):
            for source, shape in zip(need.sources, need.shapes(), strict=True):
                for name in need.names(source):
                    array = generator.standard_normal(shape, np.float32)
                    self.tensors[name] = array * np.float32(shape[-1] ** -0.5)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.tensors.items()}

    def rows(self, name: str) -> StoredRows:
        values = self.tensors[name]
        return StoredRows.of(values.reshape(-1, values.shape[-1]))

    def row_type(self, name: str) -> str:
        return "F32"

    def is_in_act_order(self, name: str) -> bool:
        return False

    def stored_types(self) -> Mapping[str, str]:
        return dict.fromkeys(self.tensors, "F32")

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        assert expected.keys() | set(extra) == self.tensors.keys()
        assert all(self.tensors[name].shape == shape for name, shape in expected.items())
