"""The forward passes of drafters that read hidden states, written out in torch from their layouts.

Rows are those of published code: row i has the hidden states of position i and token i + 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from tests.runner.speculate.head_files import LAYERS, load

EPS = 1e-5


class Target:
    """The model that is drafted for, as transformers computes it."""

    def __init__(self, directory: Path) -> None:
        kind: Any = transformers.LlamaForCausalLM
        model = kind.from_pretrained(directory, dtype=torch.float32)
        self._model = model
        self.embedding: Tensor = model.get_input_embeddings().weight.detach()
        self.head: Tensor = model.get_output_embeddings().weight.detach()

    @torch.no_grad()
    def states(self, tokens: list[int]) -> tuple[Tensor, ...]:
        """Return the input of each layer, and the last state, normalised."""
        found = self._model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return tuple([each[0] for each in found])


class Drafter:
    """The parts of a drafter, whose first layer's tensors have no prefix."""

    def __init__(self, directory: Path, layer: str) -> None:
        self.config, tensors = load(directory)
        self.tensors = {
            name.replace(f"{layer}.", ""): torch.from_numpy(each) for name, each in tensors.items()
        }
        self.config |= self.config.get("transformer_layer_config", {})

    def norm(self, x: Tensor, name: str) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        return scaled * self.tensors[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(
            x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        )

    def further(self, x: Tensor) -> Tensor:
        """Return what the layers behind the first one make of the first one's output."""
        for number in range(1, self.config["num_hidden_layers"]):
            layer = f"layers.{number}."
            x = x + self.attention(self.norm(x, f"{layer}input_layernorm"), layer)
            x = x + self.mlp(self.norm(x, f"{layer}post_attention_layernorm"), layer)
        return x

    def attention(self, x: Tensor, layer: str = "") -> Tensor:
        """Return causal attention of all rows, with rotated queries and keys; windows hold."""
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        parts = [self.linear(x, f"{layer}self_attn.{name}_proj") for name in "qkv"]
        dim = parts[0].shape[-1] // heads
        q, k, v = (part.reshape(len(x), -1, dim).transpose(0, 1) for part in parts)
        q, k = _rotated(q), _rotated(k)
        k, v = (each.repeat_interleave(heads // kv_heads, 0) for each in (k, v))
        ages = torch.arange(len(x))[:, None] - torch.arange(len(x))
        sees = (ages >= 0) & (ages < self.config.get("sliding_window", len(x)))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        return self.linear(seen.transpose(0, 1).reshape(len(x), -1), f"{layer}self_attn.o_proj")

    def mlp(self, x: Tensor, layer: str = "") -> Tensor:
        gate, up = (self.linear(x, f"{layer}mlp.{name}_proj") for name in ("gate", "up"))
        return self.linear(functional.silu(gate) * up, f"{layer}mlp.down_proj")


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]), 10_000.0 ** (-torch.arange(half) / half))
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def eagle3(
    directory: Path, target: Target, tokens: list[int], count: int, layer: str = "midlayer"
) -> list[int]:
    """Return what EAGLE-3 proposes behind tokens, the last of which has no hidden state yet."""
    drafter, known, states = Drafter(directory, layer), [*tokens], target.states(tokens[:-1])
    features = drafter.linear(torch.cat([states[each] for each in LAYERS], -1), "fc")
    proposed = []
    for _ in range(count):
        embedded = drafter.norm(target.embedding[known[1:]], "input_layernorm")
        normed = drafter.norm(features, "hidden_norm")
        residual = normed if drafter.config.get("norm_before_residual") else features
        x = residual + drafter.attention(torch.cat((embedded, normed), -1))
        x = drafter.further(x + drafter.mlp(drafter.norm(x, "post_attention_layernorm")))
        scores = drafter.linear(drafter.norm(x[-1], "norm"), "lm_head")
        place = int(scores.argmax())
        proposed.append(place + int(drafter.tensors["d2t"][place]))
        known.append(proposed[-1])
        features = torch.cat((features, x[-1:]))
    return proposed


def eagle(directory: Path, target: Target, tokens: list[int], count: int) -> list[int]:
    """Return what EAGLE proposes behind tokens, the last of which has no hidden state yet."""
    drafter, known = Drafter(directory, "layers.0"), [*tokens]
    table = drafter.tensors.get("embed_tokens.weight", target.embedding)
    features = target.states(tokens[:-1])[-1]
    proposed = []
    for _ in range(count):
        x = drafter.linear(torch.cat((table[known[1:]], features), -1), "fc")
        x = x + drafter.attention(x)
        x = drafter.further(x + drafter.mlp(drafter.norm(x, "post_attention_layernorm")))
        proposed.append(int(functional.linear(x[-1], target.head).argmax()))
        known.append(proposed[-1])
        features = torch.cat((features, x[-1:]))
    return proposed


def medusa(directory: Path, target: Target, tokens: list[int], count: int) -> list[int]:
    """Return what heads propose behind tokens, the last of which was drawn from the last state.

    Their files are in vLLM's form.
    """
    config, stored = load(directory)
    tensors = {
        name.removeprefix("medusa_heads."): torch.from_numpy(each) for name, each in stored.items()
    }
    state = target.states(tokens[:-1])[-1][-1]
    proposed = []
    for head in range(min(count, config["num_heads"])):
        x = state
        for layer in range(config["num_hidden_layers"]):
            name = f"blocks.{head}.layers.{layer}"
            bias = tensors.get(f"{name}.bias")
            x = x + functional.silu(functional.linear(x, tensors[f"{name}.weight"], bias))
        place = int(functional.linear(x, tensors[f"lm_heads.{head}.weight"]).argmax())
        proposed.append(int(tensors["token_map"][place]) if "token_map" in tensors else place)
    return proposed
