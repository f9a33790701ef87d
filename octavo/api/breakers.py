"""The tokens of DRY's sequence breakers, which only the front end can find."""

from __future__ import annotations

from dataclasses import replace

from octavo.api.text_model import TextModel
from octavo.core.sampling_params import SamplingParams


def with_breakers(model: TextModel, sampling: SamplingParams) -> SamplingParams:
    """Return the parameters with the tokens of DRY's breakers, unless they have some.

    They are the last tokens of each text, alone and behind a letter.
    """
    options = sampling.sampler_options
    if options is None or not options.has_dry or options.dry_breaker_ids:
        return sampling
    encode, size = model.tokenizer.encode, model.facts.vocabulary
    texts = [each for text in options.dry_sequence_breakers for each in (text, "a" + text)]
    ends = [encode(each, add_special_tokens=False)[-1:] for each in texts]
    tokens = dict.fromkeys(token for end in ends for token in end if token < size)
    options = replace(options, dry_breaker_ids=tuple(tokens))
    return replace(sampling, sampler_options=options)
