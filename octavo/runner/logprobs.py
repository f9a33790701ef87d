"""Log-probabilities for requests: of the actual token, and of the most likely ones.

They are computed from the model's logits before masks, penalties and temperature. Each row is
computed by itself, so that it does not depend on the batch. A backend may have a faster kernel.
"""

from __future__ import annotations

from array import array

import numpy as np

from octavo.backends.base import Floats, Ints, Longs, SamplingKernel
from octavo.core.plan import TokenLogprobs
from octavo.core.sampling_params import ALL

LEAST = float(np.finfo(np.float32).min)  # finite, since a JSON number must be


def token_logprobs(
    kernel: SamplingKernel | None, logits: Floats, rows: Longs, tokens: Ints, counts: Longs
) -> list[TokenLogprobs | None]:
    """Return the log-probabilities of each row; None for a row with a logit that is not finite."""
    entries: list[TokenLogprobs | None] = [None] * len(rows)
    if kernel is None:
        for index, (row, token, count) in enumerate(zip(rows, tokens, counts, strict=True)):
            if np.isfinite(logits[row]).all():
                entries[index] = describe(logits[row], int(token), int(count))
        return entries
    size = logits.shape[1]
    counts = np.where(counts == ALL, size, np.minimum(counts, size))
    for count in np.unique(counts).tolist():
        those = np.flatnonzero(counts == count)
        ids, logprobs, ranks = kernel.row_logprobs(logits, rows[those], tokens[those], count)
        columns = zip(those.tolist(), ids, logprobs, ranks.tolist(), strict=True)
        for index, row_ids, row_logprobs, rank in columns:
            if rank:
                entries[index] = TokenLogprobs(
                    array("i", row_ids.tobytes()), array("f", row_logprobs.tobytes()), rank
                )
    return entries


def describe(logits: Floats, token: int, count: int) -> TokenLogprobs:
    """Return log-probabilities of `token` and of the `count` most likely; ties by token id."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    logprobs = np.maximum(logprobs, LEAST).astype(np.float32)
    ids = np.concatenate((np.array([token], np.int32), _most_likely(logits, count)))
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    return TokenLogprobs(
        array("i", ids.tobytes()),
        array("f", logprobs[ids].tobytes()),
        rank,
    )


def _most_likely(logits: Floats, count: int) -> Ints:
    size = len(logits)
    count = size if count == ALL else min(count, size)
    if count == 0:
        return np.zeros(0, np.int32)
    ids = np.arange(size)
    if count < size:
        edge = np.partition(logits, size - count)[size - count]
        ids = np.flatnonzero(logits >= edge)
    order = np.argsort(-logits[ids], kind="stable")
    return ids[order[:count]].astype(np.int32)
