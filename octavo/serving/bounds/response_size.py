"""The bound of a whole response with several answers: it is estimated before any work.

A stream is written as it is made; a whole response is kept until its last token, and then encoded.
The context bounds one answer. Several, with log-probabilities, could fill the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.api.requests import TOO_LARGE
from octavo.core.pooling import Pooling
from octavo.core.sampling_params import SamplingParams
from octavo.transport.errors import invalid

TOKEN_BYTES = 16  # of its text or its id
LOGPROB_BYTES = 64  # of a token's text, bytes and number
VALUE_BYTES = 24  # of a vector's number


def response_bytes(
    sampling: SamplingParams, prompt_lengths: Sequence[int], vocabulary: int
) -> tuple[int, int]:
    """Return about how many bytes all of a response may have, and how many an answer token adds."""
    each = TOKEN_BYTES + LOGPROB_BYTES * _per_position(sampling.logprobs, vocabulary)
    per_prompt_token = LOGPROB_BYTES * _per_position(sampling.prompt_logprobs, vocabulary)
    num_answers = len(prompt_lengths) * sampling.n
    answers = num_answers * (sampling.max_tokens or 1) * each
    return answers + per_prompt_token * sum(prompt_lengths), num_answers * each


def check_response_size(
    sampling: SamplingParams,
    prompt_lengths: Sequence[int],
    vocabulary: int,
    limit: int,
    width: int = 0,
) -> None:
    """Raise ApiError for several answers, or vectors of `width`, that make too large a response."""
    if sampling.pooling is not None:
        _check_vectors(sampling.pooling, prompt_lengths, width, limit)
        return
    if len(prompt_lengths) * sampling.n == 1:
        return
    most, per_token = response_bytes(sampling, prompt_lengths, vocabulary)
    if most <= limit:
        return
    fitting = (sampling.max_tokens or 1) - -(-(most - limit) // per_token)
    advice = "ask for fewer answers or log-probabilities, or stream"
    if fitting > 0:
        advice = f"lower max_tokens to {fitting} or less, {advice}"
    raise invalid(
        f"the response may have about {most >> 20} MiB, with max_tokens and log-probabilities for "
        f"each answer; this server's limit is {limit >> 20} MiB (--max-response-bytes): {advice}",
        "max_tokens",
        TOO_LARGE,
    )


def _check_vectors(pooling: Pooling, prompt_lengths: Sequence[int], width: int, limit: int) -> None:
    is_each_token = pooling.kind == "all"
    num_vectors = sum(prompt_lengths) if is_each_token else len(prompt_lengths)
    most = num_vectors * width * VALUE_BYTES
    if most > limit:
        what = "the texts' tokens" if is_each_token else "the texts"
        raise invalid(
            f"{num_vectors} vectors of {width} numbers have about {most >> 20} MiB; this server's "
            f"limit is {limit >> 20} MiB (--max-response-bytes): divide {what} among requests",
            "prompt",
            TOO_LARGE,
        )


def _per_position(most: int | None, vocabulary: int) -> int:
    """Return the log-probabilities at one position: the likeliest, and the token's own."""
    if most is None:
        return 0
    return vocabulary if most == -1 else most + 1
