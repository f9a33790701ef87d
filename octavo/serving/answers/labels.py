"""The tokens that stand for labels where an answer begins: with and without a space before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.api.outputs import RequestError
from octavo.text.token_table import TokenTable

_BEFORE = ("", " ", "\n")


def spellings(labels: Iterable[str]) -> list[str]:
    """Return texts whose last tokens are those of the labels, for a worker to tokenise."""
    return [before + label for label in labels for before in _BEFORE]


def label_tokens(
    tokenizer: TokenTable, labels: Sequence[str], tokenised: Sequence[Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """Return the tokens of each label; raise RequestError for one that is not a token alone.

    `tokenised` are the spellings of the labels.
    """
    found: dict[str, tuple[int, ...]] = {}
    for index, label in enumerate(labels):
        own = tokenised[index * len(_BEFORE) :][: len(_BEFORE)]
        last = [tokens[-1] for tokens in own if tokens]
        exact = label.encode()
        found[label] = tuple(
            dict.fromkeys(each for each in last if tokenizer.token_bytes(each).strip() == exact)
        )
        if not found[label]:
            raise RequestError(f"this model has no token for the label {label!r}", param="model")
    return found
