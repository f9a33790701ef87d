"""Log-probabilities as a request is told them: of the token that stands there, and the likeliest.

Taken from the logits as the model gave them, before masks, penalties and temperature, each row by
itself, so that they do not depend on the batch. A backend may have a kernel that tells them sooner.
"""

from __future__ import annotations

from array import array

import numpy as np

from octavo.backends.base import Floats, Ints, Longs, SamplingKernel
from octavo.core.plan import TokenLogprobs
from octavo.core.sampling_params import ALL

LEAST = float(np.finfo(np.float32).min)  # finite, since a JSON number must be


def tell(
    kernel: SamplingKernel | None, logits: Floats, rows: Longs, tokens: Ints, counts: Longs
) -> list[TokenLogprobs | None]:
    """Of these rows of the logits: a token of each and its likeliest; None if one is not finite."""
    told: list[TokenLogprobs | None] = [None] * len(rows)
    if kernel is None:
        for index, (row, token, count) in enumerate(zip(rows, tokens, counts, strict=True)):
            if np.isfinite(logits[row]).all():
                told[index] = describe(logits[row], int(token), int(count))
        return told
    size = logits.shape[1]
    counts = np.where(counts == ALL, size, np.minimum(counts, size))
    for count in np.unique(counts).tolist():
        those = np.flatnonzero(counts == count)
        ids, logprobs, ranks = kernel.tell(logits, rows[those], tokens[those], count)
        columns = zip(those.tolist(), ids, logprobs, ranks.tolist(), strict=True)
        for index, its_ids, its_logprobs, rank in columns:
            if rank:
                told[index] = TokenLogprobs(
                    array("i", its_ids.tobytes()), array("f", its_logprobs.tobytes()), rank
                )
    return told


def describe(logits: Floats, token: int, count: int) -> TokenLogprobs:
    """One position: `token`, and the `count` likeliest; ties go by token id."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    logprobs = np.maximum(logprobs, LEAST).astype(np.float32)
    ids = np.concatenate((np.array([token], np.int32), _likeliest(logits, count)))
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    return TokenLogprobs(
        array("i", ids.tobytes()),
        array("f", logprobs[ids].tobytes()),
        rank,
    )


def _likeliest(logits: Floats, count: int) -> Ints:
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
