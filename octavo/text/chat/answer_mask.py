"""Which tokens of a prompt are the assistant's, by the places of both in the text."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, int]  # of the first character, and of the one behind the last


def mask_of(tokens: Sequence[Place], answers: Sequence[Place]) -> bytes:
    """Return a byte for each token: 1 if a part of it is in an answer, 0 if not.

    The answers are in the order of the text, and so are the tokens, but those that are not of the
    text are at (0, 0).
    """
    mask = bytearray(len(tokens))
    number = 0
    for index, (start, end) in enumerate(tokens):
        while number < len(answers) and answers[number][1] <= start:
            number += 1
        if number == len(answers):
            break
        mask[index] = start < end and end > answers[number][0]
    return bytes(mask)
