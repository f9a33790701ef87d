"""The tokens of DRY's sequence breakers in a request, which only the front end can find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from octavo.api.text_model import TextModel
from octavo.core.sampling_params import SamplingParams
from octavo.text.breakers import breaker_tokens


def with_breakers(model: TextModel, sampling: SamplingParams) -> SamplingParams:
    """Return the parameters with the tokens of DRY's breakers, unless they have them."""
    options = sampling.sampler_options
    if options is None or not options.has_dry or options.dry_breaker_ids is not None:
        return sampling
    tokens = breaker_tokens(model.tokenizer, options.dry_sequence_breakers)
    return with_breaker_tokens(model, sampling, tokens)


def with_breaker_tokens(
    model: TextModel, sampling: SamplingParams, tokens: Iterable[int]
) -> SamplingParams:
    """Return the parameters with those of the breakers' tokens that the model has."""
    if sampling.sampler_options is None:
        return sampling
    known = tuple(token for token in tokens if token < model.facts.vocabulary)
    options = replace(sampling.sampler_options, dry_breaker_ids=known)
    return replace(sampling, sampler_options=options)
