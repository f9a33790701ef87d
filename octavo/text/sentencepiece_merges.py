"""Merge rules derived from the scores of a SentencePiece vocabulary.

Such a vocabulary stores no rules: SentencePiece joins the two neighbouring pieces whose union has
the highest score. A table of ranked pairs is equivalent: every way to cut a piece into two pieces
is a pair, and a pair ranks by the score of its union.

Ranks cannot express one thing: where different pairs make the same piece in two overlapping places,
SentencePiece takes the leftmost. It matters only for texts that repeat with an odd length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Collection[int]
) -> list[tuple[str, str]]:
    """Return the pairs in order of rank; `mergeable` are the ids that merging may produce."""
    known = {tokens[token_id] for token_id in mergeable}
    best_first = sorted(mergeable, key=lambda token_id: (-scores[token_id], token_id))
    merges = []
    for token_id in best_first:
        token = tokens[token_id]
        for cut in range(len(token) - 1, 0, -1):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                merges.append((left, right))
    return merges
