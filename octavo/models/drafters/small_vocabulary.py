"""The tokens that a drafter with a vocabulary of its own can propose, by the model's ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.loader import Checkpoint
from octavo.loader.errors import TensorMismatchError

OFFSETS, IS_PROPOSED = "d2t", "t2d"
TOKEN_MAP = "token_map"


def read_tokens(checkpoint: Checkpoint, count: int, vocabulary: int) -> NDArray[np.int64] | None:
    """Return the model's id of each of the drafter's tokens; None if they are the same.

    A file has for each the offset of the model's id, and perhaps a mask of these ids.
    """
    if OFFSETS not in checkpoint and count == vocabulary:
        return None
    offsets = _read_integers(checkpoint, OFFSETS, count, "offsets")
    tokens = np.arange(count, dtype=np.int64) + offsets
    _check(checkpoint, OFFSETS, tokens, vocabulary)
    if IS_PROPOSED in checkpoint:
        mask = _read(checkpoint, IS_PROPOSED, vocabulary)
        if not np.array_equal(np.flatnonzero(mask), np.sort(tokens)):
            raise _error(checkpoint, IS_PROPOSED, f"names other tokens than {OFFSETS!r}")
    return tokens


def read_token_map(checkpoint: Checkpoint, count: int, vocabulary: int) -> NDArray[np.int64] | None:
    """Return the model's id of each of the drafter's tokens, which a file has as they are."""
    if TOKEN_MAP not in checkpoint and count == vocabulary:
        return None
    tokens = _read_integers(checkpoint, TOKEN_MAP, count, "ids")
    _check(checkpoint, TOKEN_MAP, tokens, vocabulary)
    return tokens


def _check(checkpoint: Checkpoint, name: str, tokens: NDArray[np.int64], vocabulary: int) -> None:
    """Refuse ids that the model does not have, or of which some are equal."""
    wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
    if len(wrong):
        at = int(wrong[0])
        raise _error(checkpoint, name, f"leads from {at} to token {tokens[at]} of {vocabulary:,}")
    if len(np.unique(tokens)) != len(tokens):
        raise _error(checkpoint, name, "leads from several tokens to the same one")


def _read_integers(checkpoint: Checkpoint, name: str, count: int, what: str) -> NDArray[np.int64]:
    values = _read(checkpoint, name, count)
    if values.dtype.kind not in "iu":
        raise _error(checkpoint, name, f"has the type {values.dtype}, and {what} are integers")
    return values.astype(np.int64)


def _read(checkpoint: Checkpoint, name: str, count: int) -> NDArray[np.generic]:
    values = checkpoint.read(name)
    if values.shape != (count,):
        raise _error(checkpoint, name, f"has the shape {values.shape} instead of ({count},)")
    return values


def _error(checkpoint: Checkpoint, name: str, why: str) -> TensorMismatchError:
    return TensorMismatchError(why, path=checkpoint.path, tensor=name)
