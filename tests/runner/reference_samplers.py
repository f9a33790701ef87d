"""Further samplers in plain Python: probabilities and sorted lists, as they are documented."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from octavo.core.sampling_params import SamplerOptions, SamplingParams

ORDER = (*("temperature", "top_n_sigma", "min_p", "top_k", "typical_p", "top_p", "xtc"),)


def dry_penalties(
    options: SamplerOptions, tokens: Sequence[int], breakers: Sequence[int]
) -> dict[int, float]:
    """Return what DRY takes from the logits of tokens, by comparing each place with the end."""
    if not options.dry_multiplier or not options.dry_penalty_last_n:
        return {}
    if options.samplers and "dry" not in options.samplers:
        return {}
    if options.dry_penalty_last_n > 0:
        tokens = tokens[-options.dry_penalty_last_n :]
    longest: dict[int, int] = {}
    end = len(tokens) - 1
    for place in range(end):
        same = 0
        while (
            same < min(50, place + 1)
            and tokens[place - same] == tokens[end - same]
            and tokens[end - same] not in breakers
        ):
            same += 1
        token = tokens[place + 1]
        if same >= options.dry_allowed_length and token not in breakers:
            longest[token] = max(same, longest.get(token, 0))
    return {
        token: options.dry_multiplier * options.dry_base ** (same - options.dry_allowed_length)
        for token, same in longest.items()
    }


def left_scores(
    logits: Mapping[int, float], sampling: SamplingParams, coin: float
) -> dict[int, float]:
    """Return the tokens that may be drawn, with their logits over the temperature."""
    options = sampling.sampler_options
    assert options is not None
    left, temperature = dict(logits), 1.0
    for name in options.samplers or ORDER:
        chances = _softmax({token: logit / temperature for token, logit in left.items()})
        ranked = sorted(chances, key=lambda token: (-left[token], token))
        kept = ranked
        if name == "temperature":
            temperature = _temperature(sampling, options, chances)
            if temperature < 1e-5:
                kept = ranked[:1]
            temperature = max(temperature, 0.01)
        elif name == "top_n_sigma" and options.top_n_sigma > 0:
            kept = _within_deviations(left, ranked, options.top_n_sigma)
        elif name == "min_p" and sampling.min_p:
            least = sampling.min_p * chances[ranked[0]] * (1 - 1e-12)
            kept = [token for token in ranked if chances[token] >= least]
            kept = max(kept, ranked[: options.min_keep], key=len)
        elif name == "top_k" and sampling.top_k:
            edge = left[ranked[: sampling.top_k][-1]]
            kept = [token for token in ranked if left[token] >= edge]
        elif name == "typical_p" and options.typical_p < 1:
            kept = _share(_by_surprise(chances), chances, options.typical_p, options.min_keep)
        elif name == "top_p" and sampling.top_p < 1:
            kept = _share(ranked, chances, sampling.top_p, options.min_keep)
        elif name == "xtc" and coin < options.xtc_probability and options.xtc_threshold <= 0.5:
            likely = [token for token in ranked if chances[token] >= options.xtc_threshold]
            rest = ranked[max(0, len(likely) - 1) :]
            kept = rest if len(rest) >= options.min_keep else ranked
        left = {token: left[token] for token in kept}
    return {token: logit / temperature for token, logit in left.items()}


def mirostat_left(
    logits: Mapping[int, float], sampling: SamplingParams, mu: float, vocabulary: int
) -> dict[int, float]:
    """Return the tokens that mirostat leaves, with their logits over the temperature."""
    options = sampling.sampler_options
    assert options is not None
    scores = {token: logit / max(sampling.temperature, 0.01) for token, logit in logits.items()}
    chances = _softmax(scores)
    ranked = sorted(chances, key=lambda token: (-logits[token], token))
    if options.mirostat == 1:
        kept = ranked[: _estimated([scores[token] for token in ranked], mu, vocabulary)]
    else:
        kept = [token for token in ranked if chances[token] * 2**mu >= 1 - 1e-12] or ranked[:1]
    return {token: scores[token] for token in kept}


def _estimated(ranked: Sequence[float], mu: float, vocabulary: int) -> int:
    """Return how many tokens version 1 leaves, as the paper's formula says."""
    pairs = list(pairwise(ranked[:100]))
    steps = [math.log((rank + 2) / (rank + 1)) for rank in range(len(pairs))]
    if not pairs:
        return 1
    drops = [high - low for high, low in pairs]
    weighted = math.fsum(step * drop for step, drop in zip(steps, drops, strict=True))
    exponent = weighted / math.fsum(step * step for step in steps)
    if exponent <= 0:
        return len(ranked) if mu > math.log2(vocabulary - 1) else 1
    excess = exponent - 1
    count = (excess * 2**mu / (1 - vocabulary**-excess)) ** (1 / exponent)
    return max(1, int(min(count, len(ranked))))


def moved(mu: float, scores: Mapping[int, float], token: int, sampling: SamplingParams) -> float:
    """Return mirostat's bound behind a token that was drawn from these."""
    options = sampling.sampler_options
    assert options is not None
    surprise = -math.log2(_softmax(scores)[token])
    return mu - options.mirostat_eta * (surprise - options.mirostat_tau)


def _softmax(scores: Mapping[int, float]) -> dict[int, float]:
    most = max(scores.values())
    shares = {token: math.exp(score - most) for token, score in scores.items()}
    total = math.fsum(shares.values())
    return {token: share / total for token, share in shares.items()}


def _entropy(chances: Mapping[int, float]) -> float:
    return -math.fsum(chance * math.log(chance) for chance in chances.values() if chance)


def _temperature(
    sampling: SamplingParams, options: SamplerOptions, chances: Mapping[int, float]
) -> float:
    given, spread = sampling.temperature, options.dynatemp_range
    if sampling.is_greedy or not spread or len(chances) < 2:
        return 0.0 if sampling.is_greedy else given
    share = max(0.0, _entropy(chances) / math.log(len(chances)))
    low, high = max(0.0, given - spread), given + spread
    return low + (high - low) * share**options.dynatemp_exponent


def _within_deviations(
    logits: Mapping[int, float], ranked: Sequence[int], count: float
) -> list[int]:
    mean = math.fsum(logits.values()) / len(logits)
    variance = math.fsum((logit - mean) ** 2 for logit in logits.values()) / len(logits)
    edge = logits[ranked[0]] - count * math.sqrt(variance)
    return [token for token in ranked if logits[token] >= edge]


def _by_surprise(chances: Mapping[int, float]) -> list[int]:
    """Return tokens by how far their surprise is from the expected one."""
    entropy = _entropy(chances)
    away = {
        token: round(abs(-math.log(max(chance, 1e-300)) - entropy), 9)
        for token, chance in chances.items()
    }
    return sorted(chances, key=lambda token: (away[token], token))


def _share(
    ordered: Sequence[int], chances: Mapping[int, float], wanted: float, min_keep: int
) -> list[int]:
    """Return the first tokens of an order, each with less than `wanted` before it."""
    kept: list[int] = []
    before = 0.0
    for token in ordered:
        if before >= wanted * (1 - 1e-12) and len(kept) >= max(1, min_keep):
            break
        kept.append(token)
        before += chances[token]
    return kept
