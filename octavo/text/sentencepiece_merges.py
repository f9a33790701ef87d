"""Merge rules derived from the scores of a SentencePiece vocabulary.

Such a vocabulary stores no rules: SentencePiece joins the two neighbouring pieces whose union has
the highest score. A table of ranked pairs is equivalent: every way to cut a piece into two pieces
is a pair, and a pair ranks by the score of its union.

Ranks cannot express one thing: where different pairs make the same piece in two overlapping places,
SentencePiece takes the leftmost. It matters only for texts that repeat with an odd length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo.text.token_bytes import TokenizerError

# Each way to cut a piece is tried, so the time grows with the square of its length.
MAX_PIECE_CHARACTERS = 4096


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Collection[int]
) -> list[tuple[str, str]]:
    """Return the pairs in order of rank; `mergeable` are the ids that merging may produce."""
    longest = max(mergeable, key=lambda token_id: len(tokens[token_id]), default=None)
    if longest is not None and len(tokens[longest]) > MAX_PIECE_CHARACTERS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens[{longest}] has {len(tokens[longest]):,} characters, at most "
            f"{MAX_PIECE_CHARACTERS:,} are supported in this kind of vocabulary"
        )
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
