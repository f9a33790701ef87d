"""What model families say in the same words in their config.json: sizes, windows, rotations."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from octavo.layers.rope import (
    Rope,
    by_factors,
    linear,
    llama3,
    plain,
    yarn,
    yarn_magnitude,
)
from octavo.models.values import MAX_SIZE, ConfigurationError, Values

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
# Each layer and each frequency is an object of ours, so a damaged number must not come that far.
MAX_LAYERS = 10_000
MAX_HEAD_DIM = 1 << 16
ORIGINAL_LENGTH = "original_max_position_embeddings"


class Config(Values):
    """One config.json, or a part of it that describes a decoder."""

    def head_dim(self) -> int:
        """Dimensions of an attention head."""
        hidden, heads = self.positive("hidden_size"), self.positive("num_attention_heads")
        if not self.has("head_dim") and hidden % heads:
            raise ConfigurationError(
                f"config: hidden_size {hidden} does not divide into {heads} heads"
            )
        dim = self.positive("head_dim", hidden // heads)
        if dim > MAX_HEAD_DIM:
            raise ConfigurationError(f"config: head_dim must be at most {MAX_HEAD_DIM}, is {dim}")
        return dim

    def kv_heads(self) -> int:
        """KV heads; as many as heads unless it is said."""
        heads = self.positive("num_attention_heads")
        kv_heads = self.positive("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ConfigurationError(
                f"config: {heads} heads do not divide among {kv_heads} KV heads"
            )
        return kv_heads

    def max_len(self) -> int:
        """Positions the model is made for; files with YaRN may state those it had before."""
        stated = self.positive("max_position_embeddings", 2048)
        said = self._rotation()
        is_stated = said.has("factor") and said.has(ORIGINAL_LENGTH)
        if _rope_type(said) != "yarn" or said.has("long_factor") or not is_stated:
            return stated
        stretched = said.above("factor", 0.0) * said.positive(ORIGINAL_LENGTH)
        return max(stated, int(min(stretched, MAX_SIZE - 1)))

    def run_len(self) -> int:
        """Positions it will be run with."""
        return min(self._max_len or self.max_len(), self.max_len())

    def layers(self, key: str = "num_hidden_layers") -> int:
        """How many blocks there are."""
        layers = self.positive(key)
        if layers > MAX_LAYERS:
            raise ConfigurationError(f"config: {key} must be at most {MAX_LAYERS:,}, is {layers:,}")
        return layers

    def activation(self, key: str = "hidden_act", default: str | None = None) -> str:
        """A function between the two halves of an MLP."""
        name = self.string(key, default)
        if name not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ConfigurationError(f"config: {key} {name!r} is not supported; known are {known}")
        return name

    def rounded(self, value: float) -> float:
        """A constant as the checkpoint's own type holds it, for families trained with it so."""
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
        """How far each layer sees; None is everything.

        `layer_types` says it layer by layer. Without it, families with a `period` let the last
        layer of each period see everything, others those below max_window_layers. `used` is what
        a missing use_sliding_window means.
        """
        window = self.integer("sliding_window", 0) or None
        if not self.boolean("use_sliding_window", used):
            return (None,) * layers
        kinds = self.strings("layer_types")
        if kinds is None and period is not None:
            period = self.positive("sliding_window_pattern", period)
            kinds = tuple(FULL if (i + 1) % period == 0 else SLIDING for i in range(layers))
        if kinds is None:
            first = self.integer("max_window_layers", 0)
            return tuple(window if layer >= first else None for layer in range(layers))
        if len(kinds) != layers:
            raise ConfigurationError(f"config: {len(kinds)} layer_types for {layers} layers")
        if unknown := set(kinds) - {FULL, SLIDING}:
            raise ConfigurationError(
                f"config: layer_types {', '.join(sorted(unknown))} are not supported; "
                f"known are {FULL} and {SLIDING}"
            )
        if SLIDING in kinds and window is None:
            raise ConfigurationError(f"config: {SLIDING} layers need a sliding_window above 0")
        return tuple(window if kind == SLIDING else None for kind in kinds)

    def rope(
        self,
        head_dim: int,
        *,
        theta: float = 10_000.0,
        theta_key: str = "rope_theta",
        share: float = 1.0,  # of each head turns, where the file does not say
        kind: str | None = None,
        interleaved: bool = False,
    ) -> Rope:
        """The rotary embedding, of all layers or of those of one kind (FULL or SLIDING).

        Older files say rope_theta and rope_scaling, newer ones rope_parameters.
        """
        said = self._rope_said(kind)
        base = said.above("rope_theta", 1.0, self.above(theta_key, 1.0, theta))
        share = said.number("partial_rotary_factor", self.number("partial_rotary_factor", share))
        pairs = (int(head_dim * share) + 1) // 2 if 0 < share <= 1 else 0
        if not 0 < 2 * pairs <= head_dim:
            raise ConfigurationError(
                f"config: {share:g} of {head_dim} dimensions cannot turn: they must make pairs, "
                f"from 1 to {head_dim // 2}"
            )
        frequencies, magnitude = self._frequencies(said, int(head_dim * share), base)
        return Rope(frequencies, interleaved, magnitude)

    def _rotation(self) -> Config:
        keys = ("rope_scaling", "rope_parameters")
        return next((self.part(key) for key in keys if self.values.get(key)), Config({}))

    def _rope_said(self, kind: str | None) -> Config:
        """What the file says of rotation, for layers of a kind."""
        said = self._rotation()
        by_kind = [key for key, value in said.values.items() if isinstance(value, Mapping)]
        if kind is None:
            if by_kind:
                raise ConfigurationError(
                    f"config: rope_parameters differ by layer ({', '.join(by_kind)}), which this "
                    "family does not support"
                )
            return said
        if by_kind:
            return said.part(kind) if said.has(kind) else Config({})
        # One scaling is for the layers that see far; the others never meet a long distance.
        return said if kind == FULL else Config({})

    def _frequencies(
        self, said: Config, dimensions: int, theta: float
    ) -> tuple[tuple[float, ...], float]:
        """How fast each pair of dimensions turns, and the factor on what is turned."""
        name = _rope_type(said)
        if name in ("default", "mrope"):
            return plain(dimensions, theta), 1.0
        if name == "dynamic" and not said.has("alpha"):
            # Its frequencies grow with the sequence, but only beyond the length that bounds ours.
            return plain(dimensions, theta), 1.0
        if name == "linear":
            return linear(dimensions, theta, said.above("factor", 0.0)), 1.0
        original = self.positive(ORIGINAL_LENGTH, said.positive(ORIGINAL_LENGTH, self.max_len()))
        if name in ("longrope", "su") or (name == "yarn" and said.has("long_factor")):
            return self._longrope(said, dimensions, theta, original)
        if name == "llama3":
            low = said.above("low_freq_factor", 0.0)
            high = said.above("high_freq_factor", low)
            factor = said.above("factor", 0.0)
            return llama3(dimensions, theta, factor, low, high, original), 1.0
        if name == "yarn":
            return self._yarn(said, dimensions, theta, original)
        raise ConfigurationError(
            f"config: rope_type {name!r} is not supported; known are default, linear, llama3, "
            "yarn, longrope and dynamic (without alpha)"
        )

    def _yarn(
        self, said: Config, dimensions: int, theta: float, original: int
    ) -> tuple[tuple[float, ...], float]:
        factor = said.above("factor", 0.0, self.max_len() / original)
        slow = said.above("beta_slow", 0.0, 1.0)
        fast = said.above("beta_fast", 0.0, 32.0)
        truncate = said.boolean("truncate", True)
        frequencies = yarn(dimensions, theta, factor, original, fast, slow, truncate)
        magnitude = yarn_magnitude(factor)
        over, under = said.number("mscale", 0.0), said.number("mscale_all_dim", 0.0)
        if over and under:
            magnitude = yarn_magnitude(factor, over) / yarn_magnitude(factor, under)
        return frequencies, said.above("attention_factor", 0.0, magnitude)

    def _longrope(
        self, said: Config, dimensions: int, theta: float, original: int
    ) -> tuple[tuple[float, ...], float]:
        """One set of factors for sequences within the original length, one for longer ones.

        Which it is must not change in mid-sequence, so the longest run decides.
        """
        key = "long_factor" if self.run_len() > original else "short_factor"
        factors = said.numbers(key)
        if len(factors) != (pairs := (dimensions + 1) // 2) or min(factors) <= 0:
            raise ConfigurationError(
                f"config: {key} must be {pairs} numbers above 0, one for each pair of dimensions "
                f"that turn; there are {len(factors)}"
            )
        factor = said.above("factor", 0.0, self.max_len() / original)
        magnitude = 1.0
        if factor > 1.0 and original > 1:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original))
        frequencies = by_factors(dimensions, theta, factors)
        return frequencies, said.above("attention_factor", 0.0, magnitude)


def refuse_encoder(config: Config) -> None:
    """Some decoders' files may say that every token sees all others."""
    if config.boolean("use_bidirectional_attention", False):
        raise ConfigurationError(
            "config: use_bidirectional_attention makes an encoder of it; only decoders run"
        )


def _rope_type(said: Config) -> str:
    return said.string("rope_type", said.string("type", "default"))
