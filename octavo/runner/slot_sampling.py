"""The translation of a request's sampling parameters into how its slot's tokens are drawn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.backends.base import Ints
from octavo.backends.step import NO_LOGPROBS, NO_ROWS, Processor, SlotSampling
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import LogitsProcessor
from octavo.runner.chain import chain_of, dry_of, mirostat_of, temperature_of


def slot_sampling(
    new: NewSlot, tokens: Ints, vocabulary: int, processors: Mapping[str, LogitsProcessor]
) -> SlotSampling:
    """Return how the tokens of a slot are drawn; raise ValueError if they cannot be."""
    sampling = new.sampling
    sampling.check_vocabulary(vocabulary)
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        wrong = tokens[(tokens < 0) | (tokens >= vocabulary)][0]
        raise ValueError(
            f"token id {wrong} is not in the vocabulary; ids go from 0 to {vocabulary - 1}"
        )
    allowed, bias = sampling.allowed_token_ids, sampling.logit_bias
    min_tokens = 0 if sampling.grammar else sampling.min_tokens  # masks hold back its stop tokens
    options, chain = sampling.sampler_options, chain_of(sampling)
    return SlotSampling(
        tokens=tokens,
        num_prompt=new.num_prompt,
        temperature=1.0 if chain else temperature_of(sampling),
        min_p=0.0 if chain else sampling.min_p,
        top_p=1.0 if chain else sampling.top_p,
        top_k=0 if chain else sampling.top_k,
        chain=chain,
        seed=sampling.seed or 0,
        allowed=None if allowed is None else np.array(allowed, np.int32),
        bad_words=sampling.bad_words_token_ids,
        min_tokens=min_tokens,
        stop_ids=_stop_ids(new, vocabulary) if min_tokens else NO_ROWS,
        bias_ids=np.array([token for token, _ in bias], np.int32),
        bias=np.array([value for _, value in bias], np.float32),
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        penalty_window=0 if options is None else max(0, options.repeat_last_n),
        dry=None if options is None else dry_of(options),
        mirostat=mirostat_of(sampling, new.sampler_state),
        logprobs=NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs,
        logprob_ids=np.array(sampling.logprob_token_ids, np.int32),
        processors=tuple(_named(entry, processors) for entry in sampling.logits_processors),
    )


def _stop_ids(new: NewSlot, vocabulary: int) -> Ints:
    """Return the stop tokens that exist: one that does not never stops anything."""
    return np.array([token for token in new.stop_ids if token < vocabulary], np.int32)


def _named(entry: str | LogitsProcessor, processors: Mapping[str, LogitsProcessor]) -> Processor:
    if not isinstance(entry, str):
        return entry
    if entry not in processors:
        known = ", ".join(sorted(processors)) or "none"
        raise ValueError(
            f"logits processor {entry!r} is unknown to this engine; it was started with: {known}"
        )
    return processors[entry]
