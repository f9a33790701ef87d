"""Merge rules out of the scores of a SentencePiece vocabulary.

Such a vocabulary stores no rules: of all neighbouring pieces it joins the two whose union scores
highest. A table of ranked pairs says the same: every way to cut a piece into two pieces is a
pair, and a pair ranks as its union scores.

One thing ranks cannot say: of two overlapping places where different pairs make the same piece,
SentencePiece takes the leftmost. It matters only where a text repeats itself in odd lengths.
"""

from collections.abc import Collection, Sequence


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Collection[int]
) -> list[tuple[str, str]]:
    """The pairs in order of rank; `mergeable` are the ids that text may be joined to."""
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
