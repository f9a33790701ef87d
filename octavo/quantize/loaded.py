"""A model that is loaded to read windows of a text, with the logits of every position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from octavo.backends.base import LogitsBackend
from octavo.backends.step import NO_ROWS, HostBatch
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


class LoadedModel:
    """A model with room for one window, in a backend that is given, or in that of the engine."""

    def __init__(self, source: ModelFiles, make: Callable[[], LogitsBackend] | None = None) -> None:
        opened = open_model(source)
        if not opened.spec.has_head:
            raise ConfigError(
                f"{source.name} predicts no tokens, so that no text can be read by it"
            )
        layout = place_layers(opened.model)
        self.model = opened.model
        self.window = min(WINDOW, opened.spec.max_len)
        self.vocabulary = opened.spec.vocabulary
        asked = EngineArguments(model=source.name, backend="auto" if make is None else "torch")
        block_size = resolve(asked, opened, layout).core.block_size
        width = -(-self.window // block_size)
        blocks = 1 + width * len(layout.windows)
        config = resolve(replace(asked, num_gpu_blocks_override=blocks), opened, layout)
        needed = config.bill.with_blocks(blocks)
        free = config.kind.memory().available
        if needed > free:
            raise ConfigError(
                f"{source.name} needs {readable(needed)} to read a text, and {readable(free)} are "
                "free; a comparison has two models in memory at once"
            )
        if make is None:
            made = config.kind.make(config.arguments, opened.checkpoint.files)
            self.backend = cast(LogitsBackend, made)  # every backend's logits can be read
        else:
            self.backend = make()
        bind(opened.model, self.backend, opened.weights)
        self.backend.prepare(opened.model, layout, block_size)
        self.backend.make_cache(blocks)
        numbers = np.arange(1, blocks, dtype=np.int32).reshape(len(layout.windows), 1, width)
        per_page = np.array(config.bill.blocks_per_page, np.int32)[:, None, None]
        self._tables = tuple(numbers * per_page)

    def log_probabilities(self, tokens: Sequence[int], first: int, stop: int) -> Floats:
        """Compute those of all tokens at some positions; those before have been computed."""
        rows = np.arange(stop - first, dtype=np.int32)
        scores = np.array(self._forward(tokens, first, stop, rows), np.float32)
        scores -= scores.max(-1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(-1, dtype=np.float64, keepdims=True)).astype(np.float32)
        return scores

    def read(self, tokens: Sequence[int]) -> None:
        """Compute a window without its logits."""
        self._forward(tokens, 0, len(tokens), NO_ROWS)

    def _forward(self, tokens: Sequence[int], first: int, stop: int, rows: np.ndarray) -> Floats:
        positions = np.arange(first, stop, dtype=np.int32)
        ends = np.array([0, stop - first], np.int32)
        given = np.array(tokens[first:stop], np.int32)
        batch = HostBatch(given, positions, ends, self._tables, rows)
        return self.backend.forward(batch).logits


def windows_of(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Cut tokens into windows; a last one of a single token, which predicts none, is left out."""
    for start in range(0, len(tokens), size):
        window = tokens[start : start + size]
        if len(window) > 1:
            yield window
