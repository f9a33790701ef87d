"""What every request must answer, known before it runs: tokens are a pure function of the prefix.

The model of the simulated worlds is a hash. The token behind a prefix depends on every token of
it, their order, and the adapter, and on nothing else; so whatever the core does with batches,
chunks, caches and preemptions, each request's text is already settled.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.request import FinishReason, Request

VOCABULARY = 61  # small, so that stop tokens, equal prefixes and lucky guesses are common
_MASK = (1 << 61) - 1


def start(lora: str | None) -> int:
    """The hash of the empty prefix."""
    return 17 if lora is None else sum(lora.encode()) * 7919


def extend(state: int, token: int) -> int:
    """The hash of a prefix and one more token."""
    return (state * 1_000_003 + token * 2_654_435_761 + 12_345) & _MASK


def next_token(state: int) -> int:
    """The token that the model puts behind a prefix with this hash."""
    return ((state ^ (state >> 23)) * 0x9E3779B97F4A7C15 >> 17) % VOCABULARY


def hash_of(tokens: Iterable[int], lora: str | None) -> int:
    """The hash of a whole prefix."""
    state = start(lora)
    for token in tokens:
        state = extend(state, token)
    return state


def whole_output(request: Request, max_model_len: int) -> tuple[list[int], FinishReason]:
    """All tokens a request must be given, from its very beginning, and how it must end."""
    sampling = request.sampling
    stops = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        stops.update(request.eos_token_ids)
    most = min(sampling.max_tokens, max_model_len - len(request.prompt))
    state = hash_of(request.prompt, request.lora)
    output: list[int] = []
    while True:
        token = next_token(state)
        output.append(token)
        if token in stops and len(output) >= sampling.min_tokens:
            return output, "stop"
        if len(output) >= most:
            return output, "length"
        state = extend(state, token)
