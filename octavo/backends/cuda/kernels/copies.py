"""Copies blocks of the KV cache, many of them in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.providers import LINE_BYTES
from octavo.backends.step import Copies
from octavo.backends.torch.attention import Buffers

_WORDS = LINE_BYTES // 4
_BLOCK = 1024  # words of a program: two lines for each thread of 4 warps


class Copied(NamedTuple):
    """Memory of a pool to copy, in bytes from its beginning."""

    source: int
    destination: int
    num_bytes: int


@triton.jit
def copy_blocks(pool, places, words: tl.constexpr, block: tl.constexpr):
    """Copy one part of one block; its places and size are in lines of so many words."""
    at = tl.program_id(1) * block + tl.arange(0, block)
    source = tl.load(places + 3 * tl.program_id(0)) * words
    destination = tl.load(places + 3 * tl.program_id(0) + 1) * words
    inside = at < tl.load(places + 3 * tl.program_id(0) + 2) * words
    copied = tl.load(pool + source + at, mask=inside, other=0)
    tl.store(pool + destination + at, copied, mask=inside)


def copy_in(buffers: Buffers, copies: Copies, home: Accelerator) -> None:
    """Copy blocks of a cache: (source, destination, group), in this order."""
    sizes = [buffers.block_bytes(group) for group in range(len(buffers.blocks))]
    pool = buffers.blocks[0].view(-1).view(torch.int32)  # the blocks of each group are all of it
    of_bytes = (
        Copied(source * sizes[group], destination * sizes[group], sizes[group])
        for source, destination, group in copies
    )
    copy(pool, of_bytes, home)


def copy(pool: Tensor, copies: Iterable[Copied], home: Accelerator) -> None:
    """Copy memory of a pool of 32-bit words, as if one copy came after the other."""
    for together in rounds(copies):
        (places,) = home.upload([np.array(together, np.int64) // LINE_BYTES])
        most = max(each.num_bytes for each in together)
        home.launch(
            copy_blocks,
            (len(together), triton.cdiv(most, 4 * _BLOCK)),
            (pool, places),
            (),
            words=_WORDS,
            block=_BLOCK,
            num_warps=4,
        )


def rounds(copies: Iterable[Copied]) -> Iterator[Sequence[Copied]]:
    """Split copies where one writes what another before it reads or writes, or reads what it wrote.

    The programs of a launch run in any order.
    """
    together: list[Copied] = []
    for each in copies:
        if any(_depend(before, each) for before in together):
            yield together
            together = []
        together.append(each)
    if together:
        yield together


def _depend(one: Copied, other: Copied) -> bool:
    """Return whether two copies have other results in another order."""
    size = one.num_bytes, other.num_bytes
    return (
        _overlap(one.destination, size[0], other.source, size[1])
        or _overlap(one.destination, size[0], other.destination, size[1])
        or _overlap(one.source, size[0], other.destination, size[1])
    )


def _overlap(begin: int, size: int, other_begin: int, other_size: int) -> bool:
    return begin < other_begin + other_size and other_begin < begin + size
