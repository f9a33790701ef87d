"""The ids of tool calls: nine letters and digits, which the chat templates of all models accept."""

from __future__ import annotations

from hashlib import blake2b

LENGTH = 9  # the only one that Mistral's templates accept
_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def made_id(place: str) -> str:
    """Return the id of the call at a place, the same each time."""
    number = int.from_bytes(blake2b(place.encode(), digest_size=8).digest())
    characters = []
    for _ in range(LENGTH):
        number, character = divmod(number, len(_CHARACTERS))
        characters.append(_CHARACTERS[character])
    return "".join(characters)


def short_id(given: str | None) -> str | None:
    """Return an id that another server has made, replaced unless it has this form."""
    if given is None or (len(given) == LENGTH and given.isascii() and given.isalnum()):
        return given
    return made_id(given)
