"""The names of a request's prefixes, by which engines that have some of them cached are found."""

from __future__ import annotations

from array import array

from octavo.core.request import Request
from octavo.routing import GRAIN_TOKENS


class Prefixes:
    """The names of a request's prefixes: one for each whole piece, of it and all before it."""

    __slots__ = ("_request", "keys")

    def __init__(self, request: Request) -> None:
        self._request = request
        self.keys: list[int] = []

    def extend(self, emitted: array[int]) -> list[int]:
        """Return the names for the prompt and the tokens behind it, which are only added to."""
        request, keys = self._request, self.keys
        prompt = request.prompt
        num_prompt = len(prompt)
        last = keys[-1] if keys else _root_of(request)
        for begin in range(
            len(keys) * GRAIN_TOKENS,
            num_prompt + len(emitted) - GRAIN_TOKENS + 1,
            GRAIN_TOKENS,
        ):
            end = begin + GRAIN_TOKENS
            piece = prompt[begin:end]
            if end > num_prompt:
                piece = piece + emitted[max(0, begin - num_prompt) : end - num_prompt]
            last = hash((last, piece.tobytes()))
            keys.append(last)
        return keys


def _root_of(request: Request) -> int:
    """Return the name of what must be equal, beside tokens, for KV to be shared."""
    encoder = None if request.encoder is None else request.encoder.digest
    return hash((request.cache_scope, request.lora, encoder, request.salts))
