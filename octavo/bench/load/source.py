"""The data that a measurement sends, by its name: one place for a server and for an engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from octavo.bench.load import files, shapes, traces
from octavo.bench.load.asked import MOST_TOKENS, Asked, Shape, Write, scaled, written
from octavo.core.config import ConfigError

RANDOM, PREFIXES, SHAREGPT, CUSTOM = "random", "prefix_repetition", "sharegpt", "custom"
MOONCAKE, TIMED, BURSTGPT = "mooncake", "timed_trace", "burstgpt"
# The size of a block and the unit of time that a file has, as Mooncake and vLLM have them.
BLOCKS = {MOONCAKE: (shapes.MOONCAKE_BLOCK, 0.001), TIMED: (16, 1.0)}

_USUAL = shapes.Lengths(1024, 128)


@dataclass(frozen=True, slots=True)
class Data:
    """A choice of what is sent: the name of the data, its file, its lengths, and how many."""

    name: str
    count: int
    path: Path | None = None
    lengths: shapes.Lengths = _USUAL  # of random data
    num_prefixes: int = 10
    max_tokens: int | None = None  # of an answer, instead of those of conversations
    block: int | None = None  # tokens
    unit: float | None = None  # seconds
    burstgpt_model: str = "GPT-4"
    length_scale: float = 1.0
    is_shuffled: bool = True  # the prompts of a file
    is_repeated: bool = True  # if there are fewer than are asked for


# Returns the requests of a run, whose prompts a writer makes. A further run has other prompts.
Source = Callable[[random.Random, Write], list[Asked]]


def open_source(data: Data) -> Source:
    """Read the data's file, if it has one, and return what makes the requests of a run."""
    if data.name in (CUSTOM, SHAREGPT) and data.path is not None:
        if data.name == CUSTOM:
            texts = files.read_lines(data.path, data.max_tokens or 256)
        else:
            texts = files.read_sharegpt(data.path, data.max_tokens)
        return lambda chance, write: files.chosen(
            texts,
            data.count,
            chance,
            is_shuffled=data.is_shuffled,
            is_repeated=data.is_repeated,
        )
    if data.path is not None:
        read = traces.in_order(_sized(_read_trace(data, data.path), data), data.path)
        return lambda chance, write: written(read, write)
    return lambda chance, write: written(_sized(_drawn(data, chance), data), write)


def _read_trace(data: Data, path: Path) -> Iterator[Shape]:
    if data.name == BURSTGPT:
        return traces.read_burstgpt(path, data.burstgpt_model)
    block, unit = BLOCKS[data.name]
    block = block if data.block is None else data.block
    return traces.read_mooncake(path, block, unit if data.unit is None else data.unit)


def _drawn(data: Data, chance: random.Random) -> list[Shape]:
    if data.name == RANDOM:
        return shapes.random_lengths(data.count, data.lengths, chance)
    if data.name == PREFIXES:
        return shapes.repeated_prefixes(data.count, data.num_prefixes, data.lengths, chance)
    return {
        SHAREGPT: shapes.like_sharegpt,
        MOONCAKE: shapes.like_mooncake,
        BURSTGPT: shapes.like_burstgpt,
    }[data.name](data.count, chance)


def _sized(drawn: Iterable[Shape], data: Data) -> list[Shape]:
    """Return as many as are asked for, of the size that is asked for."""
    found, total = [], 0
    for each in islice(drawn, data.count):
        if data.max_tokens is not None:
            each = each._replace(max_tokens=data.max_tokens)
        found.append(each if data.length_scale == 1.0 else scaled(each, data.length_scale))
        total += found[-1].prompt_tokens
        if total > MOST_TOKENS:
            raise ConfigError(
                f"the prompts have more than {MOST_TOKENS:,} tokens together, which are too many "
                "to keep; ask for fewer with num_prompts, or for shorter ones with length_scale"
            )
    return found
