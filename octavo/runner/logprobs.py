"""Log-probabilities as a request is told them: of the token that stands there, and the likeliest.

Taken from the logits as the model gave them, before masks, penalties and temperature, each row by
itself, so that they do not depend on the batch.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import TokenLogprobs
from octavo.core.sampling_params import ALL

Floats = NDArray[np.float32]

LEAST = float(np.finfo(np.float32).min)  # finite, since a JSON number must be


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


def _likeliest(logits: Floats, count: int) -> NDArray[np.int32]:
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
