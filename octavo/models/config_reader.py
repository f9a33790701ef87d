"""The parts of a config.json that model families share: sizes, windows, rotations."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from octavo.layers import ModelSpec
from octavo.layers.rope import (
    Rope,
    by_factors,
    linear,
    llama3,
    plain,
    yarn,
    yarn_magnitude,
)
from octavo.models.bounds import MAX_SIZE
from octavo.models.values import ConfigurationError, Values, shown

__all__ = ["FULL", "SLIDING", "Config", "ConfigurationError", "refuse_encoder"]

# Kinds of attention layer, as layer_types names them.
FULL, SLIDING = "full_attention", "sliding_attention"
ACTIVATIONS = (
    "silu",
    "swish",
    "gelu",
    "gelu_pytorch_tanh",
    "gelu_new",
    "gelu_fast",
    "relu",
    "relu2",
)
ORIGINAL_LENGTH = "original_max_position_embeddings"


class Config(Values):
    """One config.json, or a part of it that describes a decoder."""

    def standard_spec(self, **own: Any) -> ModelSpec:
        """Return a spec: the fields in `own` as given, the others under their usual keys.

        A field that a family gives itself is not read, so its usual key may be absent or mean
        something else.
        """
        layers, dim = self.layers(), own.get("head_dim") or self.head_dim()
        usual: dict[str, Callable[[], Any]] = {
            "vocabulary": lambda: self.positive("vocab_size"),
            "hidden": lambda: self.positive("hidden_size"),
            "layers": lambda: layers,
            "heads": lambda: self.positive("num_attention_heads"),
            "kv_heads": self.kv_heads,
            "head_dim": lambda: dim,
            "ffn": lambda: self.positive("intermediate_size"),
            "eps": lambda: self.number("rms_norm_eps", 1e-6),
            "activation": lambda: self.activation("hidden_act", "silu"),
            "max_len": self.max_len,
            "attention_scale": lambda: dim**-0.5,
            "ropes": lambda: (self.rope(dim),) * layers,
            "windows": lambda: (None,) * layers,
            "tied": lambda: self.boolean("tie_word_embeddings", False),
            "qkv_bias": lambda: self.boolean("attention_bias", False),
            "out_bias": lambda: self.boolean("attention_bias", False),
        }
        read = {field: reader() for field, reader in usual.items() if field not in own}
        return ModelSpec(**read, **own)

    def architecture(self, default: str) -> str:
        """Return the first of `architectures`, or the default where there is none."""
        return (self.strings("architectures") or (default,))[0]

    def head_dim(self) -> int:
        """Read the dimensions of an attention head."""
        hidden, heads = self.positive("hidden_size"), self.positive("num_attention_heads")
        if not self.has("head_dim") and hidden % heads:
            raise ConfigurationError(
                f"{self.name_of('hidden_size')} {hidden} does not divide into {heads} heads, the "
                f"value of {self.name_of('num_attention_heads')}"
            )
        return self.positive("head_dim", hidden // heads)

    def kv_heads(self) -> int:
        """Read the number of KV heads, by default the number of heads."""
        heads = self.positive("num_attention_heads")
        kv_heads = self.positive("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ConfigurationError(
                f"{self.name_of('num_attention_heads')} {heads} does not divide among {kv_heads} "
                f"KV heads, the value of {self.name_of('num_key_value_heads')}"
            )
        return kv_heads

    def experts(self, key: str) -> tuple[int, int]:
        """Read the number of experts in a layer, and how many of them a token passes."""
        top_k, count = self.positive("num_experts_per_tok"), self.positive(key)
        if top_k > count:
            raise ConfigurationError(
                f"{self.name_of('num_experts_per_tok')} must be at most {count}, the number of "
                f"experts, is {top_k}"
            )
        return count, top_k

    def max_len(self) -> int:
        """Read how many positions the model supports; files with YaRN may state fewer."""
        stated = self.positive("max_position_embeddings", 2048)
        rotation = self.rotation()
        is_stated = rotation.has("factor") and rotation.has(ORIGINAL_LENGTH)
        if _rope_type(rotation) != "yarn" or rotation.has("long_factor") or not is_stated:
            return stated
        stretched = rotation.above("factor", 0.0) * rotation.positive(ORIGINAL_LENGTH)
        return max(stated, int(min(stretched, MAX_SIZE - 1)))

    def run_len(self) -> int:
        """Return how many positions the model will be run with."""
        return min(self._max_len or self.max_len(), self.max_len())

    def layers(self, key: str = "num_hidden_layers") -> int:
        """Read the number of blocks."""
        return self.positive(key)

    def activation(self, key: str = "hidden_act", default: str | None = None) -> str:
        """Read the name of the activation in an MLP."""
        return self.choice(key, ACTIVATIONS, default)

    def choice(self, key: str, known: tuple[str, ...], default: str | None = None) -> str:
        """Read a name that must be one of those known."""
        name = self.string(key, default)
        if name not in known:
            raise ConfigurationError(
                f"{self.name_of(key)} {shown(name)} is not supported; known are "
                + ", ".join(sorted(known))
            )
        return name

    def rounded(self, value: float) -> float:
        """Round a constant to the checkpoint's type, for families that were trained so."""
        name = self.string("dtype", self.string("torch_dtype", "float32"))
        if name == "bfloat16":
            bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
            bits += 0x7FFF + (bits >> 16 & 1)  # to the nearest, ties to even
            return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])
        if name == "float16":
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        return value

    def windows(
        self, layers: int, *, period: int | None = None, used: bool = True
    ) -> tuple[int | None, ...]:
        """Read the window of each layer; None means that it reads all positions.

        `layer_types` states the kind of every layer. Without it, the last layer of each `period`
        has no window; in families without a period, those below max_window_layers have none.
        `used` is the default of use_sliding_window.
        """
        window = self.integer("sliding_window", 0) or None
        if not self.boolean("use_sliding_window", used):
            return (None,) * layers
        kinds = self.layer_kinds(layers, SLIDING)
        if kinds is None and period is not None:
            period = self.positive("sliding_window_pattern", period)
            kinds = tuple(FULL if (i + 1) % period == 0 else SLIDING for i in range(layers))
        if kinds is None:
            first = self.integer("max_window_layers", 0)
            return tuple(window if layer >= first else None for layer in range(layers))
        if SLIDING in kinds and window is None:
            raise ConfigurationError(f"config: {SLIDING} layers need a sliding_window above 0")
        return tuple(window if kind == SLIDING else None for kind in kinds)

    def layer_kinds(self, layers: int, other: str) -> tuple[str, ...] | None:
        """Read for each layer whether it is full attention or of another kind, if stated."""
        kinds = self.strings("layer_types")
        if kinds is None:
            return None
        if len(kinds) != layers:
            raise ConfigurationError(f"config: {len(kinds)} layer_types for {layers} layers")
        if unknown := set(kinds) - {FULL, other}:
            raise ConfigurationError(
                f"config: layer_types {shown(min(unknown))} is not supported; "
                f"known are {FULL} and {other}"
            )
        return kinds

    def rope(
        self,
        head_dim: int,
        *,
        theta: float = 10_000.0,
        theta_key: str = "rope_theta",
        share: float = 1.0,  # default of the part of each head that rotates
        kind: str | None = None,
        interleaved: bool = False,
    ) -> Rope:
        """Read the rotary embedding of all layers, or of those of one kind (FULL or SLIDING).

        Older files have rope_theta and rope_scaling, newer ones rope_parameters.
        """
        stated = self._rotation_of(kind)
        base = stated.above("rope_theta", 1.0, self.above(theta_key, 1.0, theta))
        share = stated.number("partial_rotary_factor", self.number("partial_rotary_factor", share))
        pairs = (int(head_dim * share) + 1) // 2 if 0 < share <= 1 else 0
        if not 0 < 2 * pairs <= head_dim:
            raise ConfigurationError(
                f"{self.name_of('head_dim')} {head_dim}: a share of {share:g} cannot rotate, since "
                f"dimensions make pairs, from 1 to {head_dim // 2}"
            )
        frequencies, magnitude = self._frequencies(stated, int(head_dim * share), base)
        return Rope(frequencies, interleaved, magnitude)

    def rotation(self) -> Config:
        """Return what the file states about the rotation of all layers."""
        keys = ("rope_scaling", "rope_parameters")
        return next((self.part(key) for key in keys if self.values.get(key)), Config({}))

    def _rotation_of(self, kind: str | None) -> Config:
        """Return what the file states about the rotation of layers of one kind."""
        stated = self.rotation()
        by_kind = [key for key, value in stated.values.items() if isinstance(value, Mapping)]
        if kind is None:
            if by_kind:
                raise ConfigurationError(
                    f"config: rope_parameters differ by layer ({shown(by_kind[0])}), which this "
                    "family does not support"
                )
            return stated
        if by_kind:
            return stated.part(kind) if stated.has(kind) else Config({})
        # A single scaling is for full layers; distances inside a window are never long.
        return stated if kind == FULL else Config({})

    def _frequencies(
        self, stated: Config, dimensions: int, theta: float
    ) -> tuple[tuple[float, ...], float]:
        """Return the frequency of each pair of dimensions, and the factor on cos and sin."""
        name = _rope_type(stated)
        if name in ("default", "mrope"):
            return plain(dimensions, theta), 1.0
        if name == "dynamic" and not stated.has("alpha"):
            # Frequencies depend on the sequence only beyond max_len, which bounds our sequences.
            return plain(dimensions, theta), 1.0
        if name == "linear":
            return linear(dimensions, theta, stated.above("factor", 0.0)), 1.0
        original = self.positive(ORIGINAL_LENGTH, stated.positive(ORIGINAL_LENGTH, self.max_len()))
        if name in ("longrope", "su") or (name == "yarn" and stated.has("long_factor")):
            return self._longrope(stated, dimensions, theta, original)
        if name == "llama3":
            low = stated.above("low_freq_factor", 0.0)
            high = stated.above("high_freq_factor", low)
            factor = stated.above("factor", 0.0)
            return llama3(dimensions, theta, factor, low, high, original), 1.0
        if name == "yarn":
            return self._yarn(stated, dimensions, theta, original)
        raise ConfigurationError(
            f"config: rope_type {shown(name)} is not supported; known are default, linear, llama3, "
            "yarn, longrope and dynamic (without alpha)"
        )

    def _yarn(
        self, stated: Config, dimensions: int, theta: float, original: int
    ) -> tuple[tuple[float, ...], float]:
        factor = stated.above("factor", 0.0, self.max_len() / original)
        slow = stated.above("beta_slow", 0.0, 1.0)
        fast = stated.above("beta_fast", 0.0, 32.0)
        truncate = stated.boolean("truncate", True)
        frequencies = yarn(dimensions, theta, factor, original, fast, slow, truncate)
        magnitude = yarn_magnitude(factor)
        over, under = stated.number("mscale", 0.0), stated.number("mscale_all_dim", 0.0)
        if over and under:
            magnitude = yarn_magnitude(factor, over) / yarn_magnitude(factor, under)
        return frequencies, stated.above("attention_factor", 0.0, magnitude)

    def _longrope(
        self, stated: Config, dimensions: int, theta: float, original: int
    ) -> tuple[tuple[float, ...], float]:
        """Choose the factors for sequences within the original length, or those for longer ones.

        The choice must not change within a sequence, so the longest possible run decides.
        """
        key = "long_factor" if self.run_len() > original else "short_factor"
        factors = stated.numbers(key)
        if len(factors) != (pairs := (dimensions + 1) // 2) or min(factors) <= 0:
            raise ConfigurationError(
                f"config: {key} must be {pairs} numbers above 0, one for each pair of dimensions "
                f"that rotate; there are {len(factors)}"
            )
        factor = stated.above("factor", 0.0, self.max_len() / original)
        magnitude = 1.0
        if factor > 1.0 and original > 1:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original))
        frequencies = by_factors(dimensions, theta, factors)
        return frequencies, stated.above("attention_factor", 0.0, magnitude)


def refuse_encoder(config: Config) -> None:
    """Refuse a model whose tokens attend to all others, which some decoders' files can ask for."""
    if config.boolean("use_bidirectional_attention", False):
        raise ConfigurationError(
            "config: use_bidirectional_attention makes this model an encoder; only decoders are "
            "supported"
        )


def _rope_type(stated: Config) -> str:
    return stated.string("rope_type", stated.string("type", "default"))
