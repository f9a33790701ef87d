"""The forward pass of layers for drafts, whose block is transformers' own of the model's kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from tests.runner.speculate.head_files import load, save
from tests.runner.speculate.head_reference import EPS
from tests.runner.speculate.mtp_files import DEEPSEEK_LAYER, MIMO_LAYER


class Layout(NamedTuple):
    """The names of one kind, and transformers' classes for it."""

    model: str
    config: str
    layer: str
    of_embed: str
    of_feature: str
    join: str
    norm: str
    feature_first: bool


LAYOUTS = {
    "mimo": Layout(
        *("Qwen2ForCausalLM", "Qwen2Config", MIMO_LAYER, "token_layernorm", "hidden_layernorm"),
        *("input_proj", "final_layernorm", True),
    ),
    "deepseek": Layout(
        *("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK_LAYER, "enorm", "hnorm"),
        *("eh_proj", "shared_head.norm", False),
    ),
}


class MultiToken:
    """A model and its layer for drafts, in two models of transformers."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.layout = layout = LAYOUTS[kind]
        config, tensors = load(directory)
        self.tensors = {
            name.removeprefix(f"{layout.layer}."): torch.from_numpy(each)
            for name, each in tensors.items()
            if name.startswith(f"{layout.layer}.")
        }
        outside = {
            name: each for name, each in tensors.items() if not name.startswith(f"{layout.layer}.")
        }
        self.model = _loaded(layout, save(directory / "alone", config, outside))
        block = {
            f"model.layers.0.{name}": each.numpy()
            for name, each in self.tensors.items()
            if name.startswith(("self_attn.", "mlp.", "input_layernorm.", "post_attention_"))
        }
        for name in ("model.embed_tokens", "lm_head"):
            block[f"{name}.weight"] = tensors[f"{name}.weight"]
        block["model.norm.weight"] = self.tensors[f"{layout.norm}.weight"].numpy()
        config |= {"num_hidden_layers": 1, "first_k_dense_replace": 0}
        self.block = _loaded(layout, save(directory / "block", config, block))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        return scaled * self.tensors[f"{name}.weight"]

    @torch.no_grad()
    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """Return what the layer proposes behind tokens, the last of which has no state yet."""
        layout, known = self.layout, [*tokens]
        table = self.model.get_input_embeddings().weight
        states = self.model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0]
        proposed = []
        for _ in range(count):
            pair = [self._norm(table[known[1:]], layout.of_embed)]
            pair.insert(int(not layout.feature_first), self._norm(states, layout.of_feature))
            x = functional.linear(torch.cat(pair, -1), self.tensors[f"{layout.join}.weight"])
            normed = self.block.model(inputs_embeds=x[None]).last_hidden_state[0]
            proposed.append(int(self.model.lm_head(normed[-1]).argmax()))
            known.append(proposed[-1])
            states = torch.cat((states, normed[-1:]))
        return proposed


def _loaded(layout: Layout, directory: Path) -> Any:
    kind: Any = getattr(transformers, layout.model)
    values = json.loads((directory / "config.json").read_text())
    config = getattr(transformers, layout.config)(**values)
    model, found = kind.from_pretrained(
        directory, config=config, dtype=torch.float32, output_loading_info=True
    )
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    return model
