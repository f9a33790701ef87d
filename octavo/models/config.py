"""Reads a checkpoint's config.json: typed, bounded, with errors that say what is wrong where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.layers.rope import (
    Rope,
    by_factors,
    linear,
    llama3,
    plain,
    yarn,
    yarn_magnitude,
)
from octavo.loader.errors import CheckpointError

# No real model comes near; a config beyond it is damaged or hostile.
MAX_SIZE = 1 << 31


class ConfigurationError(CheckpointError):
    """A config.json that contradicts itself, or asks for what is not supported."""


class Config:
    """The values of one config.json (or of one part of it)."""

    def __init__(self, values: Mapping[str, Any], max_len: int | None = None) -> None:
        self.values = values
        # The longest sequence that will be run; None: as long as the model can.
        self._max_len = max_len

    def part(self, key: str) -> Config:
        """A nested object, such as text_config."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"config: {key} must be an object, is {value!r}")
        return Config(value, self._max_len)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A size or a count: a whole number, not negative."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_SIZE:
            raise ConfigurationError(f"config: {key} must be a whole number ≥ 0, is {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """A size that cannot be zero."""
        value = self.integer(key, default)
        if value == 0:
            raise ConfigurationError(f"config: {key} must be above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise ConfigurationError(f"config: {key} must be a finite number, is {value!r}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ConfigurationError(f"config: {key} must be true or false, is {value!r}")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"config: {key} must be a string, is {value!r}")
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A list of texts; None if the key is not there."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigurationError(f"config: {key} must be a list of strings, is {value!r}")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(v, int | float) for v in value):
            raise ConfigurationError(f"config: {key} must be a list of numbers, is {value!r}")
        return tuple(map(float, value))

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None if the key is not there or null."""
        return self.number(key) if self.has(key) else None

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConfigurationError(f"config: {key} is missing")
            return default
        return value

    # what most families say in the same words

    def head_dim(self) -> int:
        """Dimensions of an attention head."""
        hidden, heads = self.positive("hidden_size"), self.positive("num_attention_heads")
        if not self.has("head_dim") and hidden % heads:
            raise ConfigurationError(
                f"config: hidden_size {hidden} does not divide into {heads} heads"
            )
        return self.positive("head_dim", hidden // heads)

    def kv_heads(self) -> int:
        """KV heads; as many as heads unless it is said."""
        heads = self.positive("num_attention_heads")
        kv_heads = self.positive("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ConfigurationError(
                f"config: {heads} heads do not divide among {kv_heads} KV heads"
            )
        return kv_heads

    def rotary_dimensions(self, head_dim: int, factor: float = 1.0, older: str = "") -> int:
        """How many of a head's dimensions turn: `partial_rotary_factor`, or an older name."""
        factor = self.number("partial_rotary_factor", self.number(older, factor))
        parameters = self.values.get("rope_parameters") or {}
        factor = Config(parameters).number("partial_rotary_factor", factor)
        dimensions = int(head_dim * factor)
        if not 0 < dimensions <= head_dim or dimensions % 2:
            raise ConfigurationError(
                f"config: {factor:g} of a head's {head_dim} dimensions turn, which is not an even "
                f"number from 2 to {head_dim}"
            )
        return dimensions

    def max_len(self) -> int:
        """Positions the model is made for."""
        return self.positive("max_position_embeddings", 2048)

    def run_len(self) -> int:
        """Positions it will be run with."""
        return min(self._max_len or self.max_len(), self.max_len())

    def windows(self, layers: int) -> tuple[int | None, ...]:
        """How far each layer sees: `layer_types`, or use_sliding_window with max_window_layers."""
        window = self.integer("sliding_window", 0) or None
        kinds = self.strings("layer_types")
        if kinds is not None:
            if len(kinds) != layers:
                raise ConfigurationError(f"config: {len(kinds)} layer_types for {layers} layers")
            return tuple(window if kind == "sliding_attention" else None for kind in kinds)
        if not self.boolean("use_sliding_window", True):
            return (None,) * layers
        first = self.integer("max_window_layers", 0)  # the layers below it see everything
        return tuple(window if layer >= first else None for layer in range(layers))

    def rope(
        self,
        dimensions: int,
        *,
        theta: float = 10_000.0,
        kind: str | None = None,
        interleaved: bool = False,
    ) -> Rope:
        """The rotary embedding, of all layers or of those of one kind (`full_attention` …).

        Older files say rope_theta and rope_scaling, newer ones rope_parameters.
        """
        said = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if kind is not None and isinstance(said.get(kind), Mapping):
            said = said[kind]
        parameters = Config(said)
        base = parameters.number("rope_theta", self.number("rope_theta", theta))
        name = parameters.string("rope_type", parameters.string("type", "default"))
        frequencies, magnitude = self._scaled(name, dimensions, base, parameters)
        return Rope(frequencies, interleaved, magnitude)

    def _scaled(
        self, name: str, dimensions: int, theta: float, said: Config
    ) -> tuple[tuple[float, ...], float]:
        if name in ("default", "mrope"):
            return plain(dimensions, theta), 1.0
        original = said.positive(
            "original_max_position_embeddings",
            self.positive("original_max_position_embeddings", self.max_len()),
        )
        if name in ("longrope", "su"):
            return self._longrope(dimensions, theta, said, original)
        factor = said.number("factor")
        if name == "linear":
            return linear(dimensions, theta, factor), 1.0
        if name == "llama3":
            low, high = said.number("low_freq_factor"), said.number("high_freq_factor")
            return llama3(dimensions, theta, factor, low, high, original), 1.0
        if name == "yarn":
            frequencies = yarn(
                dimensions,
                theta,
                factor,
                original,
                said.number("beta_fast", 32.0),
                said.number("beta_slow", 1.0),
                said.boolean("truncate", True),
            )
            return frequencies, said.number("attention_factor", yarn_magnitude(factor))
        if name == "dynamic" and self.run_len() <= self.max_len():
            # Its frequencies grow with the sequence; up to the original length they are plain.
            return plain(dimensions, theta), 1.0
        raise ConfigurationError(
            f"config: rope_type {name!r} is not supported; known are default, linear, llama3, "
            "yarn, longrope and dynamic (up to the original length)"
        )

    def _longrope(
        self, dimensions: int, theta: float, said: Config, original: int
    ) -> tuple[tuple[float, ...], float]:
        """One set of factors for sequences within the original length, one for longer ones.

        Which it is must not change in mid-sequence, so the longest run decides.
        """
        is_long = self.run_len() > original
        factors = said.numbers("long_factor" if is_long else "short_factor")
        factor = self.max_len() / original
        magnitude = 1.0
        if factor > 1.0:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original))
        return by_factors(dimensions, theta, factors), said.number("attention_factor", magnitude)
