"""A comparison of two models over a text: perplexities, and the divergence of their predictions.

Both are run by the engine's own backend, as they would be served: on the processor, activations may
be rounded too. The text is cut into windows that are read apart from each other; the first token of
each is given, and the others are predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from msgspec import Struct

from octavo.api.text_model import load_tokenizer
from octavo.backends.base import LogitsBackend
from octavo.backends.step import HostBatch
from octavo.core.config import ConfigError
from octavo.loader import ModelFiles
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.options.engine import EngineArguments
from octavo.quantize.packer import Floats
from octavo.resolve import resolve
from octavo.runner.kv_cache import readable

WINDOW = 512  # tokens
MOST_TOKENS = 16_384  # of a text
_ROWS = 64  # whose logits are kept at once


class Comparison(Struct, frozen=True):
    """The figures of two models over one text."""

    tokens: int  # that were predicted
    is_whole: bool  # False: the text is longer, and its rest was not read
    perplexity: float  # of the first model
    other_perplexity: float
    divergence: float  # of the other from the first: the mean KL divergence, in nats a token
    agreement: float  # the part of the tokens for which both find the same token the likeliest


class _Loaded:
    """A model that is ready to compute logits of a window."""

    def __init__(self, source: ModelFiles) -> None:
        opened = open_model(source)
        if not opened.spec.has_head:
            raise ConfigError(f"{source.name} predicts no tokens, so that nothing can be compared")
        self.layout = place_layers(opened.model)
        self.window = min(WINDOW, opened.spec.max_len)
        self.vocabulary = opened.spec.vocabulary
        asked = EngineArguments(model=source.name)
        block_size = resolve(asked, opened, self.layout).core.block_size
        width = -(-self.window // block_size)
        blocks = 1 + width * len(self.layout.windows)
        config = resolve(replace(asked, num_gpu_blocks_override=blocks), opened, self.layout)
        needed = config.bill.with_blocks(blocks)
        free = config.kind.memory().available
        if needed > free:
            raise ConfigError(
                f"a comparison has both models in memory at once: {source.name} needs "
                f"{readable(needed)}, and {readable(free)} are free"
            )
        made = config.kind.make(config.arguments, opened.checkpoint.files)
        self.backend = cast(LogitsBackend, made)  # every backend's logits can be read
        bind(opened.model, self.backend, opened.weights)
        self.backend.prepare(opened.model, self.layout, block_size)
        self.backend.make_cache(blocks)
        numbers = np.arange(1, blocks, dtype=np.int32).reshape(len(self.layout.windows), 1, width)
        per_page = np.array(config.bill.blocks_per_page, np.int32)[:, None, None]
        self.tables = tuple(numbers * per_page)

    def log_probabilities(self, tokens: Sequence[int], first: int, stop: int) -> Floats:
        """Compute those of all tokens at some positions; those before have been computed."""
        positions = np.arange(first, stop, dtype=np.int32)
        ends = np.array([0, len(positions)], np.int32)
        given = np.array(tokens[first:stop], np.int32)
        rows = np.arange(len(positions), dtype=np.int32)
        batch = HostBatch(given, positions, ends, self.tables, rows)
        scores = np.array(self.backend.forward(batch).logits, np.float32)
        scores -= scores.max(-1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(-1, dtype=np.float64, keepdims=True)).astype(np.float32)
        return scores


def compare(
    first: ModelFiles, other: ModelFiles, text: str, show: Callable[[int, int], None]
) -> Comparison:
    """Run both models over the text; the tokens are those of the first one's tokenizer."""
    tokens = load_tokenizer(first).encode(text, add_special_tokens=False)
    one = _Loaded(first)
    two = _Loaded(other)
    if one.vocabulary != two.vocabulary:
        raise ConfigError(
            f"{first.name} has {one.vocabulary:,} tokens and {other.name} {two.vocabulary:,}, so "
            "that their predictions cannot be compared"
        )
    read = tokens[:MOST_TOKENS]
    windows = list(_windows(read, one.window))
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


def _windows(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Cut tokens into windows; a last one of a single token, which predicts none, is left out."""
    for start in range(0, len(tokens), size):
        window = tokens[start : start + size]
        if len(window) > 1:
            yield window
