"""Shapes of requests that are drawn by chance: fixed lengths, and some shaped like known traces.

The last three are like the traces that they are named after in what their makers have published
of them: the lengths, the shares in common, the times. They are not those traces.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from octavo.bench.load.asked import Piece, Shape

# ShareGPT. The means are those of the vLLM paper (Kwon et al., SOSP 2023, section 6.1, figure 11).
# Lengths are log-normal; the ratio of the 90th percentile to the median is that of Sarathi-Serve
# (Agrawal et al., OSDI 2024, table 2, openchat_sharegpt4): 5696/1730 of prompts, 834/415 of
# answers. What vLLM's command leaves out of the data set is drawn again.
_SHAREGPT_MEANS = 161.31, 337.99
_P90 = 1.2815515655446004  # of a normal distribution
_SHAREGPT_SPREADS = math.log(5696 / 1730) / _P90, math.log(834 / 415) / _P90
_SHAREGPT_LEAST, _SHAREGPT_MOST_PROMPT, _SHAREGPT_MOST = 4, 1024, 2048

# Mooncake's conversations (Qin et al., FAST 2025, table 1): 12,031 requests in an hour, 12,035
# tokens of a prompt and 343 of an answer in the mean, 40 % of the blocks in common. The spreads are
# fitted to 151 lines of its `conversation_trace.jsonl`: prompts are log-normal with sigma 1.17,
# answers have a gamma distribution with shape 2.6. Its prompts have at least 890 tokens, and all
# begin with the same block of 512.
_MOONCAKE_RATE = 12_031 / 3600
_MOONCAKE_MEANS = 12_035, 343
_MOONCAKE_SPREAD, _MOONCAKE_SHAPE = 1.17, 2.6
_MOONCAKE_LEAST, _MOONCAKE_MOST = 890, 131_072
MOONCAKE_BLOCK = 512
# Of the requests that go on with an earlier prompt, and among how many recent ones it is: together
# they leave 40 % of the blocks in common.
_GOES_ON, _RECENT = 0.4, 400

# BurstGPT, as its makers' own generator draws it (github.com/HPMLL/BurstGPT, example/src/burstgpt,
# after Wang et al., arXiv 2401.17644): times between requests have a gamma distribution with shape
# 0.5 and the mean of a second, lengths have Zipf's with exponent 1.1 below 1024.
_BURSTGPT_SHAPE, _BURSTGPT_SCALE = 0.5, 2.0
_BURSTGPT_EXPONENT, _BURSTGPT_MOST = 1.1, 1023


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of random prompts and answers, in tokens."""

    prompt: int
    answer: int
    prefix: int = 0  # the same in all prompts, beside the rest
    spread: float = 0.0  # lengths are drawn between 1 - spread and 1 + spread of these


def random_lengths(
    count: int, lengths: Lengths, chance: random.Random, name: str = "0"
) -> list[Shape]:
    """Return requests of about the same lengths, which share no more than a prefix."""

    def drawn(tokens: int) -> int:
        low, high = int(tokens * (1 - lengths.spread)), int(tokens * (1 + lengths.spread))
        return max(1, chance.randint(low, high))

    prefix = (Piece(f"prefix {name}", lengths.prefix),) if lengths.prefix else ()
    return [
        Shape((*prefix, Piece(f"{name} {index}", drawn(lengths.prompt))), drawn(lengths.answer))
        for index in range(count)
    ]


def repeated_prefixes(
    count: int, num_prefixes: int, lengths: Lengths, chance: random.Random
) -> list[Shape]:
    """Return requests of which as many as possible begin in the same few ways."""
    each = -(-count // num_prefixes)
    parts = [random_lengths(each, lengths, chance, str(name)) for name in range(num_prefixes)]
    shapes = [shape for part in parts for shape in part][:count]
    chance.shuffle(shapes)
    return shapes


def like_sharegpt(count: int, chance: random.Random) -> list[Shape]:
    """Return requests with lengths like those of ShareGPT's first turns; all come at once."""
    draw_prompt, draw_answer = map(
        _log_normal, _SHAREGPT_MEANS, _SHAREGPT_SPREADS, [chance, chance]
    )
    shapes: list[Shape] = []
    while len(shapes) < count:
        prompt, answer = round(draw_prompt()), round(draw_answer())
        fits = prompt <= _SHAREGPT_MOST_PROMPT and prompt + answer <= _SHAREGPT_MOST
        if min(prompt, answer) >= _SHAREGPT_LEAST and fits:
            shapes.append(Shape((Piece(str(len(shapes)), prompt),), answer))
    return shapes


def like_mooncake(count: int, chance: random.Random) -> list[Shape]:
    """Return requests with lengths, shared blocks and times like those of Mooncake's chats."""
    draw = _log_normal(_MOONCAKE_MEANS[0], _MOONCAKE_SPREAD, chance)
    shapes: list[Shape] = []
    recent: list[tuple[int, tuple[str, ...]]] = []  # the sizes and keys of prompts
    at, num_keys = 0.0, 1
    for _ in range(count):
        at += chance.expovariate(_MOONCAKE_RATE)
        tokens = min(max(_MOONCAKE_LEAST, round(draw())), _MOONCAKE_MOST)
        answer = chance.gammavariate(_MOONCAKE_SHAPE, _MOONCAKE_MEANS[1] / _MOONCAKE_SHAPE)
        num_blocks = -(-tokens // MOONCAKE_BLOCK)
        keys: tuple[str, ...] = ("0",)
        if chance.random() < _GOES_ON:
            keys = _earlier(recent, num_blocks)
        new = num_blocks - len(keys)
        keys += tuple(map(str, range(num_keys, num_keys + new)))
        num_keys += new
        recent.append((num_blocks, keys))
        del recent[:-_RECENT]
        shapes.append(Shape(blocks(keys, tokens, MOONCAKE_BLOCK), max(1, round(answer)), at))
    return shapes


def _earlier(recent: list[tuple[int, tuple[str, ...]]], num_blocks: int) -> tuple[str, ...]:
    """Return the whole blocks of the longest recent prompt that a longer one can go on with."""
    fitting = [keys for size, keys in recent if size < num_blocks]
    longest = max(fitting, key=len, default=("0", ""))
    return longest[:-1] or ("0",)


def blocks(keys: tuple[str, ...], tokens: int, size: int) -> tuple[Piece, ...]:
    """Return the pieces of a prompt in blocks, the last of which may not be whole."""
    return tuple(
        Piece(f"block {key}", min(size, tokens - first))
        for key, first in zip(keys, range(0, tokens, size), strict=False)
    )


def like_burstgpt(count: int, chance: random.Random) -> list[Shape]:
    """Return requests with lengths and times like those of BurstGPT."""
    weights = accumulate(each**-_BURSTGPT_EXPONENT for each in range(1, _BURSTGPT_MOST + 1))
    sums = list(weights)

    def length() -> int:
        return 1 + bisect_left(sums, chance.random() * sums[-1])

    shapes, at = [], 0.0
    for index in range(count):
        at += chance.gammavariate(_BURSTGPT_SHAPE, _BURSTGPT_SCALE)
        shapes.append(Shape((Piece(str(index), length()),), length(), at))
    return shapes


def _log_normal(mean: float, spread: float, chance: random.Random) -> Callable[[], float]:
    """Return a function that draws from a log-normal distribution with this mean."""
    return lambda: chance.lognormvariate(math.log(mean) - spread**2 / 2, spread)
