"""The forward pass of DFlash, written out in torch from its layout.

A pass has the whole context and one block: nothing is kept from one to the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.runner.speculate.head_files import load
from tests.runner.speculate.head_reference import Target

EPS = 1e-5


class Drafter:
    """The parts of a drafter, with what its configuration states."""

    def __init__(self, directory: Path) -> None:
        config, tensors = load(directory)
        self.config: dict[str, Any] = {
            **config,
            **config.get("transformer_layer_config", {}),
            **config.get("dflash_config", {}),
        }
        self.tensors = {name: torch.from_numpy(each) for name, each in tensors.items()}

    def norm(self, x: Tensor, name: str) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        return scaled * self.tensors[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.tensors.get(f"{name}.bias")
        return functional.linear(x, self.tensors[f"{name}.weight"], bias)

    def sees(self, number: int, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which positions the rows of a layer read."""
        kinds, config = self.config.get("layer_types"), self.config
        slides = kinds is not None and kinds[number] == "sliding_attention"
        is_causal = config.get("causal", slides and not config.get("sliding_window_non_causal"))
        ages = queries[:, None] - keys
        seen = torch.ones_like(ages, dtype=torch.bool)
        if is_causal:
            seen &= ages >= 0
        if slides:
            seen &= ages.abs() < config["sliding_window"]
        return seen

    def attention(self, number: int, x: Tensor, context: Tensor) -> Tensor:
        """Let the rows of a block read the context before them, and each other."""
        name = f"layers.{number}.self_attn"
        both = torch.cat((context, x))
        dim = self.config["head_dim"]
        q = self.linear(x, f"{name}.q_proj").reshape(len(x), -1, dim)
        k, v = (
            self.linear(both, f"{name}.{each}").reshape(len(both), -1, dim)
            for each in ("k_proj", "v_proj")
        )
        q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        positions = torch.arange(len(both))
        rows = positions[len(context) :]
        q, k = rotated(q, rows), rotated(k, positions)
        group = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        sees = self.sees(number, rows, positions)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        return self.linear(out.transpose(0, 1).reshape(len(x), -1), f"{name}.o_proj")

    def mlp(self, number: int, x: Tensor) -> Tensor:
        name = f"layers.{number}.mlp"
        gate, up = (self.linear(x, f"{name}.{each}_proj") for each in ("gate", "up"))
        return self.linear(functional.silu(gate) * up, f"{name}.down_proj")


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.outer(positions, 10_000.0 ** (-torch.arange(half) / half))[:, None]
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def dflash(directory: Path, target: Target, tokens: list[int], count: int, rows: int) -> list[int]:
    """Return the first `count` proposals of a block of `rows` behind tokens.

    The last of these is in the block; it has no hidden state yet.
    """
    drafter = Drafter(directory)
    config = drafter.config
    ids = config.get("aux_hidden_state_layer_ids") or [
        each + 1 for each in config["target_layer_ids"]
    ]
    states = target.states(tokens[:-1])
    context = drafter.norm(
        drafter.linear(torch.cat([states[i] for i in ids], -1), "fc"), "hidden_norm"
    )
    block = [tokens[-1], *[config["mask_token_id"]] * (rows - 1)]
    x = target.embedding[block] * config.get("input_embedding_scale", 1.0)
    for number in range(config["num_hidden_layers"]):
        layer = f"layers.{number}"
        normed = drafter.norm(x, f"{layer}.input_layernorm")
        x = x + drafter.attention(number, normed, context)
        x = x + drafter.mlp(number, drafter.norm(x, f"{layer}.post_attention_layernorm"))
    final = drafter.norm(x[1 : count + 1], "norm")
    own = drafter.tensors.get("lm_head.weight")
    places = functional.linear(final, target.head if own is None else own).argmax(-1)
    if "d2t" in drafter.tensors:
        places = places + drafter.tensors["d2t"][places]
    found: list[int] = places.tolist()
    return found
