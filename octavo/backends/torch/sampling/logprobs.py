"""Log-probabilities for requests: of the actual token, and of the most likely ones.

They are computed from the model's logits before penalties and temperature, and after the mask of a
shape. Each row is
computed by itself, so that it does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.backends.step import ALL_LOGPROBS, NO_ROWS, RowLogprobs

LEAST = float(np.finfo(np.float32).min)  # finite, since a JSON number must be


def row_logprobs(
    slot: int, rows: Floats, tokens: Sequence[int], count: int, given: Ints = NO_ROWS
) -> RowLogprobs:
    """Return log-probabilities of each row's token and of the `count` likeliest, or of `given`."""
    entries = [describe(row, token, count, given) for row, token in zip(rows, tokens, strict=True)]
    ids, logprobs, ranks = zip(*entries, strict=True)
    return RowLogprobs(slot, np.stack(ids), np.stack(logprobs), np.array(ranks, np.int32))


def describe(
    logits: Floats, token: int, count: int, given: Ints = NO_ROWS
) -> tuple[Ints, Floats, int]:
    """Return ids, log-probabilities and rank of `token`, then of the `count` most likely ones.

    If `given` has tokens, they come instead of the most likely.

    The rank is that of `token`. Ties go by token id.
    """
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    logprobs = np.maximum(logprobs, LEAST).astype(np.float32)
    others = given if len(given) else _most_likely(logits, count)
    ids = np.concatenate((np.array([token], np.int32), others))
    return ids, logprobs[ids], 1 + int(np.count_nonzero(logits > logits[token]))


def _most_likely(logits: Floats, count: int) -> Ints:
    size = len(logits)
    count = size if count == ALL_LOGPROBS else min(count, size)
    if count == 0:
        return np.zeros(0, np.int32)
    ids = np.arange(size)
    if count < size:
        edge = np.partition(logits, size - count)[size - count]
        ids = np.flatnonzero(logits >= edge)
    order = np.argsort(-logits[ids], kind="stable")
    return ids[order[:count]].astype(np.int32)
