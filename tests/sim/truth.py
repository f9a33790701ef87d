"""The right output of every request, known before it runs.

The model of the simulated worlds is a hash. The token after a prefix depends on every token of
the prefix, their order and the adapter, and on nothing else. So batches, chunks, caches and
preemptions must not change the output of any request.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.request import FinishReason, Request
from octavo.core.sampling_params import SamplingParams

VOCABULARY = 61  # small, so that stop tokens, equal prefixes and right drafts are common
_MASK = (1 << 61) - 1


def start(lora: str | None) -> int:
    """Return the hash of the empty prefix."""
    return 17 if lora is None else sum(lora.encode()) * 7919


def extend(state: int, token: int) -> int:
    """Return the hash of a prefix and one more token."""
    return (state * 1_000_003 + token * 2_654_435_761 + 12_345) & _MASK


def next_token(state: int) -> int:
    """Return the token that follows a prefix with this hash."""
    return ((state ^ (state >> 23)) * 0x9E3779B97F4A7C15 >> 17) % VOCABULARY


def hash_of(tokens: Iterable[int], lora: str | None) -> int:
    """Return the hash of a whole prefix."""
    state = start(lora)
    for token in tokens:
        state = extend(state, token)
    return state


def prefix_hashes(tokens: Iterable[int], request: Request) -> list[int]:
    """Return the hash of every prefix of a request's tokens, the empty one and the whole included.

    A salt takes effect before the token at its position, and an encoder's input before all.
    """
    salts = dict(request.salts)
    states = [start(request.lora)]
    if request.encoder is not None:
        states[0] = extend(states[0], int.from_bytes(request.encoder.digest, "little"))
    for position, token in enumerate(tokens):
        state = states[-1]
        if position in salts:
            state = extend(state, int.from_bytes(salts[position], "little") + 1)
        states.append(extend(state, token))
    return states


def grammar_end(request: Request, max_model_len: int) -> int | None:
    """Return after how many output tokens the toy grammar of a request fails; None: it does not.

    The grammar of some requests allows just their text: what is drawn behind its end is forbidden.
    """
    if request.request_id.endswith("8") and len(request.prompt) < max_model_len:
        return len(whole_output(request, max_model_len)[0])
    return sum(request.prompt) % 9 if request.request_id.endswith("3") else None


def repeats(output: list[int], sampling: SamplingParams) -> bool:
    """Return whether the repetition that is asked for ends an output."""
    asked = sampling.repetition_detection
    if asked is None or len(output) < sampling.min_tokens:
        return False
    sizes = range(asked.min_pattern_size, asked.max_pattern_size + 1)
    return any(
        output[-size * asked.min_count :] == output[-size:] * asked.min_count for size in sizes
    )


def right_output(
    request: Request, max_model_len: int, has_grammars: bool
) -> tuple[list[int], FinishReason]:
    """Return all output tokens of a request, which its toy grammar may end, and the reason."""
    output, reason = whole_output(request, max_model_len)
    end = grammar_end(request, max_model_len) if has_grammars else None
    return (output, reason) if end is None or end >= len(output) else (output[:end], "impossible")


def whole_output(request: Request, max_model_len: int) -> tuple[list[int], FinishReason]:
    """Return all output tokens of a request without a grammar, and its finish reason."""
    sampling = request.sampling
    stops = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        stops.update(request.eos_token_ids)
    most = min(sampling.max_tokens, max_model_len - len(request.prompt))
    state = prefix_hashes(request.prompt, request)[-1]
    output: list[int] = []
    while True:
        token = next_token(state)
        output.append(token)
        if token in stops and len(output) >= sampling.min_tokens:
            return output, "stop"
        if len(output) >= most:
            return output, "length"
        if repeats(output, sampling):
            return output, "repetition"
        state = extend(state, token)
