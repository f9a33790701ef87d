"""Writes prompts of given lengths: as words for a server, or as token ids for an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from octavo.bench.load.asked import Piece, Write

# Words that most vocabularies have whole, with a space before them.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea kid body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
WORDS = tuple(_TEXT.split())
_KEPT = 4096  # pieces that many prompts have are drawn once


def words(words_per_token: float, seed: str) -> Write:
    """Return a writer of words; the same seed gives the same ones."""

    @lru_cache(_KEPT)
    def text(piece: Piece) -> str:
        chance = random.Random(f"{seed} {piece.key}")
        return " ".join(chance.choices(WORDS, k=max(1, round(piece.tokens * words_per_token))))

    return lambda pieces: " ".join(map(text, pieces))


def token_ids(choices: Sequence[int], seed: str) -> Write:
    """Return a writer of token ids, as many as a piece has, drawn from these."""

    @lru_cache(_KEPT)
    def ids(piece: Piece) -> list[int]:
        return random.Random(f"{seed} {piece.key}").choices(choices, k=piece.tokens)

    return lambda pieces: [each for piece in pieces for each in ids(piece)]
