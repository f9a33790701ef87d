"""A slow reference sampler: plain Python, token by token, as the parameters are documented.

It shares only the noise bits with the runner; test_noise.py tests those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from octavo.backends.torch.sampling import noise
from octavo.core.sampling_params import SamplingParams
from tests.runner.reference_samplers import dry_penalties, left_scores, mirostat_left, moved


def masked(
    logits: Sequence[float],
    sampling: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
) -> list[float]:
    """Return the logits after masks, bias and penalties."""
    row = [float(value) for value in logits]
    if sampling.allowed_token_ids is not None:
        allowed = sampling.allowed_token_ids
        row = [value if token in allowed else -math.inf for token, value in enumerate(row)]
    for word in sampling.bad_words_token_ids:
        before = list(word[:-1])
        if not before or list(output)[-len(before) :] == before:
            row[word[-1]] = -math.inf
    if len(output) < sampling.min_tokens:
        for token in stop_ids:
            row[token] = -math.inf
    for token, value in sampling.logit_bias:
        row[token] += value
    options = sampling.sampler_options
    known, written = [*prompt, *output], list(output)
    if options is not None and options.repeat_last_n > 0:
        known = known[-options.repeat_last_n :]
        written = written[-options.repeat_last_n :]
    for token in set(known):
        factor = sampling.repetition_penalty
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(written):
        row[token] -= sampling.frequency_penalty * written.count(token)
        row[token] -= sampling.presence_penalty
    if options is not None:
        tokens = [*prompt, *output]
        for token, penalty in dry_penalties(options, tokens, options.dry_breaker_ids or ()).items():
            row[token] -= penalty
    return row


def distribution(row: Sequence[float], sampling: SamplingParams) -> dict[int, float]:
    """Return the probability of each token that may be drawn."""
    temperature = max(sampling.temperature, 0.01)
    top = max(row)
    shares = {t: math.exp((x - top) / temperature) for t, x in enumerate(row) if x > -math.inf}
    if sampling.min_p:
        shares = {t: p for t, p in shares.items() if p >= sampling.min_p * (1 - 1e-12)}
    if sampling.top_k and len(shares) > sampling.top_k:
        edge = sorted(shares.values(), reverse=True)[sampling.top_k - 1]
        shares = {t: p for t, p in shares.items() if p >= edge}
    total = sum(shares.values())
    if sampling.top_p < 1:
        kept, before = {}, 0.0
        for token in sorted(shares, key=lambda t: (-shares[t], t)):
            if before >= sampling.top_p * total:
                break
            kept[token] = shares[token]
            before += shares[token]
        shares = kept
    total = sum(shares.values())
    return {token: share / total for token, share in shares.items()}


def coin(keys: tuple[int, int]) -> float:
    """Return the number between 0 and 1 that decides about XTC."""
    (drawn,) = noise.bits([keys], noise.spread(np.array([2**32])))[0].tolist()
    return ((drawn >> 12) + 0.5) / 2**52


def sample(
    logits: Sequence[float],
    sampling: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
    mu: float | None = None,
) -> int:
    """Return the token that the sampler must choose; `mu` is mirostat's bound, if not the first."""
    row = masked(logits, sampling, prompt, output, stop_ids)
    options = sampling.sampler_options
    if sampling.is_greedy and (options is None or options.mirostat):
        return max(range(len(row)), key=lambda token: (row[token], -token))
    keys = noise.keys(sampling.seed or 0, len(output))
    if sampling.has_state:
        assert sampling.sampler_options is not None
        first = 2 * sampling.sampler_options.mirostat_tau
        scores = _mirostat_scores(row, sampling, first if mu is None else mu)
    elif sampling.sampler_options is None:
        temperature = max(sampling.temperature, 0.01)
        scores = {token: row[token] / temperature for token in distribution(row, sampling)}
    else:
        finite = {token: logit for token, logit in enumerate(row) if logit > -math.inf}
        scores = left_scores(finite, sampling, coin(keys))
    ids = sorted(scores)
    drawn = noise.bits([keys], noise.spread(np.array(ids)))[0].tolist()
    best, choice = -math.inf, -1
    for token, x in zip(ids, drawn, strict=True):
        score = scores[token] - math.log(-math.log(((x >> 12) + 0.5) / 2**52))
        if score > best:
            best, choice = score, token
    return choice


def _mirostat_scores(row: Sequence[float], sampling: SamplingParams, mu: float) -> dict[int, float]:
    finite = {token: logit for token, logit in enumerate(row) if logit > -math.inf}
    return mirostat_left(finite, sampling, mu, len(row))


def state_behind(
    rows: Sequence[Sequence[float]],
    sampling: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
) -> float:
    """Return mirostat's bound behind an output, whose tokens were drawn from these logits."""
    if not sampling.has_state:
        return 0.0
    assert sampling.sampler_options is not None
    mu = 2 * sampling.sampler_options.mirostat_tau
    for index, (logits, token) in enumerate(zip(rows, output, strict=False)):
        row = masked(logits, sampling, prompt, output[:index], stop_ids)
        mu = moved(mu, _mirostat_scores(row, sampling, mu), token, sampling)
    return mu
