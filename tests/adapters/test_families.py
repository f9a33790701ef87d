"""An adapter adds to each projection of each family what merging it into the checkpoint adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.adapters.pairs import Limits
from octavo.adapters.read import AdapterReader
from octavo.loader.gguf.reader import open_gguf
from tests.adapters.made import (
    changes,
    make_arrays,
    matrices,
    merged,
    modules_of,
    read_adapter,
    write_adapter,
)
from tests.loader.make_files import F32, STRING, f32_tensor, write_gguf
from tests.models.convert_gguf import _CHANGES, ARCHITECTURES, _as_it_is, _model_arch
from tests.models.made_up import ENCODER_CONFIGS, EXPERTS, MadeUpWeights, make_model

MORE: dict[str, dict[str, Any]] = {
    "MixtralForCausalLM": EXPERTS,
    "Qwen3MoeForCausalLM": EXPERTS,
    "OlmoeForCausalLM": EXPERTS,
    "Gemma2ForCausalLM": {"sliding_window": 8},
    "Gemma3ForCausalLM": {"sliding_window": 8},
    "Olmo3ForCausalLM": {"sliding_window": 8},
    "Cohere2ForCausalLM": {"sliding_window": 8},
    **ENCODER_CONFIGS,
}
FAMILIES = [
    "LlamaForCausalLM",
    "Phi3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "FalconForCausalLM",
    "StableLmForCausalLM",
    "Glm4ForCausalLM",
    "Qwen2MoeForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Lfm2ForCausalLM",
    "BertModel",
    "NomicBertModel",
    "ModernBertModel",
    "DistilBertModel",
    *MORE,
]


@pytest.mark.parametrize("architecture", dict.fromkeys(FAMILIES))
def test_an_adapter_of_all_projections_is_what_merging_adds(
    architecture: str, tmp_path: Path
) -> None:
    more = MORE.get(architecture, {})
    base, other = (make_model(architecture, **more) for _ in range(2))
    modules = list(modules_of(base))
    ranks = {each.name: 1 + number % 4 for number, each in enumerate(modules)}
    arrays = make_arrays(modules, ranks.__getitem__)
    write_adapter(tmp_path, arrays, rank_pattern=ranks, lora_alpha=6)
    adapter = read_adapter(base, tmp_path)
    weights = MadeUpWeights(base)
    before = matrices(base, weights)
    after = matrices(other, merged(weights, modules, arrays, lambda name: 6 / ranks[name]))
    added = changes(base, adapter)
    assert adapter.rank == max(ranks.values())
    assert added.keys() == before.keys(), "every projection of the blocks is changed"
    for path, change in added.items():
        np.testing.assert_allclose(after[path] - before[path], change, atol=2e-6, err_msg=path)


def test_a_pair_of_fused_projections_is_shared_by_their_parts(tmp_path: Path) -> None:
    """A backend computes what it has in common once."""
    model = make_model("Phi3ForCausalLM")
    write_adapter(tmp_path, make_arrays(list(modules_of(model))))
    queries, keys, values = read_adapter(model, tmp_path).pairs["blocks.1.attn.qkv"]
    assert queries is not None
    assert keys is not None
    assert values is not None
    assert queries.down is keys.down is values.down


def test_parts_without_a_pair_have_none(tmp_path: Path) -> None:
    model = make_model("LlamaForCausalLM")
    modules = [each for each in modules_of(model) if each.name.endswith(("v_proj", "up_proj"))]
    write_adapter(tmp_path, make_arrays(modules), target_modules=["v_proj", "up_proj"])
    pairs = read_adapter(model, tmp_path).pairs
    assert set(pairs) == {
        f"blocks.{n}.{name}" for n in (0, 1) for name in ("attn.qkv", "mlp.gate_up")
    }
    assert [pair is None for pair in pairs["blocks.0.attn.qkv"]] == [True, True, False]
    assert [pair is None for pair in pairs["blocks.0.mlp.gate_up"]] == [True, False]


@pytest.mark.parametrize("prefix", ["base_model.model.model.", "base_model.model.", "model.", ""])
def test_names_may_lack_their_first_words(prefix: str, tmp_path: Path) -> None:
    """A base without its head has other names, and so have files that no PEFT has written."""
    model = make_model("LlamaForCausalLM")
    modules = list(modules_of(model))
    arrays = make_arrays(modules)
    renamed = {
        prefix + name.removeprefix("base_model.model.model."): array
        for name, array in arrays.items()
    }
    write_adapter(tmp_path / "one", arrays)
    write_adapter(tmp_path / "other", renamed)
    one, other = (changes(model, read_adapter(model, tmp_path / each)) for each in ("one", "other"))
    assert all((other[path] == one[path]).all() for path in one)


@pytest.mark.parametrize(
    "architecture",
    [
        name
        for name in dict.fromkeys(FAMILIES)
        if name in ARCHITECTURES and name not in ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
    ],
)
def test_the_gguf_form_is_the_same_adapter(architecture: str, tmp_path: Path) -> None:
    """Converters move the rows of weights, and those of adapters with them."""
    model = make_model(architecture, **MORE.get(architecture, {}))
    modules = list(modules_of(model))
    arrays = make_arrays(modules)
    write_adapter(tmp_path, arrays, lora_alpha=6)
    expected = changes(model, read_adapter(model, tmp_path))
    name_of = ARCHITECTURES[architecture]
    names = gguf.get_tensor_name_map(_model_arch(name_of), model.spec.layers)
    change = _as_it_is if name_of == "gpt2" else _CHANGES.get(name_of, _as_it_is)
    tensors = []
    for each in modules:
        stored = names.get_name(f"{each.name}.weight", try_suffixes=(".weight",))
        assert stored is not None, each.name
        down, up = (arrays[f"base_model.model.{each.name}.lora_{half}.weight"] for half in "AB")
        heads = model.spec.heads, model.spec.kv_heads
        ((_, moved),) = change(f"{each.name}.weight", up, *heads)
        tensors += [f32_tensor(f"{stored}.lora_a", down), f32_tensor(f"{stored}.lora_b", moved)]
    pairs: list[tuple[str, int, Any]] = [("general.type", STRING, "adapter")]
    pairs.append(("general.architecture", STRING, name_of))
    pairs += [("adapter.type", STRING, "lora"), ("adapter.lora.alpha", F32, 6.0)]
    path = write_gguf(tmp_path / "adapter.gguf", pairs, tensors)
    found = changes(model, AdapterReader(model, Limits(16)).read(open_gguf(path), b""))
    assert found.keys() == expected.keys()
    assert all((found[path] == expected[path]).all() for path in expected)
