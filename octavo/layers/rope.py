"""Rotary position embedding: the frequency of each pair of dimensions, and its scalings."""

from __future__ import annotations

import math

from msgspec import Struct


class Rope(Struct, frozen=True):
    """A frequency for each pair of dimensions; the functions below compute them."""

    frequencies: tuple[float, ...]
    interleaved: bool = False  # pairs are (0,1), (2,3) … instead of (i, i + half)
    magnitude: float = 1.0  # factor on cos and sin

    @property
    def num_dimensions(self) -> int:
        """The number of leading dimensions of a head that rotate; the others pass unchanged."""
        return 2 * len(self.frequencies)


def plain(dimensions: int, theta: float) -> tuple[float, ...]:
    """Return theta^(-2i/d), the original frequencies."""
    return tuple(1.0 / theta ** (i / dimensions) for i in range(0, dimensions, 2))


def linear(dimensions: int, theta: float, factor: float) -> tuple[float, ...]:
    """Return frequencies for positions that are divided by a factor."""
    return tuple(f / factor for f in plain(dimensions, theta))


def llama3(
    dimensions: int, theta: float, factor: float, low: float, high: float, original_length: int
) -> tuple[float, ...]:
    """Divide slow frequencies by a factor, keep fast ones, and blend those in between."""
    frequencies = []
    for frequency in plain(dimensions, theta):
        turns = original_length * frequency / (2 * math.pi)  # over the original context
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        frequencies.append(share * frequency + (1 - share) * frequency / factor)
    return tuple(frequencies)


def yarn(
    dimensions: int,
    theta: float,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> tuple[float, ...]:
    """Return YaRN's frequencies: dimensions that turn often are kept, the others are slowed."""

    def dimension_of(turns: float) -> float:
        length = math.log(original_length / (turns * 2 * math.pi))
        return dimensions * length / (2 * math.log(theta))

    low, high = dimension_of(beta_fast), dimension_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    if low == high:
        high += 0.001
    frequencies = []
    for index, frequency in enumerate(plain(dimensions, theta)):
        slowed = min(1.0, max(0.0, (index - low) / (high - low)))
        frequencies.append(frequency / factor * slowed + frequency * (1 - slowed))
    return tuple(frequencies)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """Return the factor by which YaRN sharpens attention."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def by_factors(dimensions: int, theta: float, factors: tuple[float, ...]) -> tuple[float, ...]:
    """Return LongRoPE's frequencies: each is divided by a factor of its own."""
    pairs = zip(plain(dimensions, theta), factors, strict=True)
    return tuple(frequency / factor for frequency, factor in pairs)
