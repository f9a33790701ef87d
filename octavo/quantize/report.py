"""A comparison of two models over a text: perplexities, and the divergence of their predictions.

Both are run by the engine's own backend, as they would be served: on the processor, activations may
be rounded too. The text is cut into windows that are read apart from each other; the first token of
each is given, and the others are predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from octavo.api.text_model import load_tokenizer
from octavo.core.config import ConfigError
from octavo.loader import ModelFiles
from octavo.quantize.loaded import MOST_TOKENS, LoadedModel, windows_of
from octavo.quantize.packer import Floats

_ROWS = 64  # whose logits are kept at once


class Comparison(Struct, frozen=True):
    """The figures of two models over one text."""

    tokens: int  # that were predicted
    is_whole: bool  # False: the text is longer, and its rest was not read
    perplexity: float  # of the first model
    other_perplexity: float
    divergence: float  # of the other from the first: the mean KL divergence, in nats a token
    agreement: float  # the part of the tokens for which both find the same token the likeliest


def compare(
    first: ModelFiles, other: ModelFiles, text: str, show: Callable[[int, int], None]
) -> Comparison:
    """Run both models over the text; the tokens are those of the first one's tokenizer."""
    tokens = load_tokenizer(first).encode(text, add_special_tokens=False)
    one = LoadedModel(first)
    two = LoadedModel(other)
    if one.vocabulary != two.vocabulary:
        raise ConfigError(
            f"{first.name} has {one.vocabulary:,} tokens and {other.name} {two.vocabulary:,}, so "
            "that their predictions cannot be compared"
        )
    read = tokens[:MOST_TOKENS]
    windows = list(windows_of(read, one.window))
    if not windows:
        raise ConfigError("the text of --report has fewer than two tokens; name a longer one")
    total = sum(len(window) - 1 for window in windows)
    sums = np.zeros(4)
    done = 0
    for window in windows:
        for start in range(0, len(window) - 1, _ROWS):
            stop = min(start + _ROWS, len(window) - 1)
            following = np.array(window[start + 1 : stop + 1])
            sums += _figures(
                one.log_probabilities(window, start, stop),
                two.log_probabilities(window, start, stop),
                following,
            )
            done += stop - start
            show(done, total)
    means = sums / total
    return Comparison(
        total,
        len(read) == len(tokens),
        math.exp(means[0]),
        math.exp(means[1]),
        max(float(means[2]), 0.0),
        float(means[3]),
    )


def _figures(one: Floats, two: Floats, following: np.ndarray) -> np.ndarray:
    """Sum over some positions: both losses, the divergence, and how often both agree."""
    rows = np.arange(len(following))
    divergence = np.einsum("rt,rt->r", np.exp(one), one - two)
    return np.array(
        [
            -one[rows, following].sum(dtype=np.float64),
            -two[rows, following].sum(dtype=np.float64),
            divergence.sum(dtype=np.float64),
            (one.argmax(-1) == two.argmax(-1)).sum(),
        ]
    )
