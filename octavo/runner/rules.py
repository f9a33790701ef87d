"""A request's changes of its logits besides temperature and filters.

They are applied in this order: allowed ids, bad words, min_tokens, bias, the request's own
processors, penalties. Only sequences with any of these have a `Rules`; all others are sampled
together.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import LogitsProcessor, SamplingParams
from octavo.runner.penalties import Penalties


class SamplingError(ValueError):
    """A failure of one sequence, with the message for its request; others continue."""


class Rules:
    """One sequence's rules, and the counts that follow its output."""

    __slots__ = (
        "_allowed",
        "_bad_words",
        "_bias",
        "_biased",
        "_min_tokens",
        "_penalties",
        "_processors",
        "_stop_ids",
    )

    def __init__(
        self, new: NewSlot, vocabulary: int, processors: Mapping[str, LogitsProcessor]
    ) -> None:
        sampling = new.sampling
        tokens = np.array(new.tokens, np.int32)
        prompt, output = tokens[: new.num_prompt], tokens[new.num_prompt :]
        allowed = sampling.allowed_token_ids
        self._allowed = None if allowed is None else np.array(allowed, np.int64)
        self._bad_words = sampling.bad_words_token_ids
        self._min_tokens = sampling.min_tokens
        self._stop_ids = np.array([i for i in new.stop_ids if i < vocabulary], np.int64)
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._bias = np.array([value for _, value in sampling.logit_bias], np.float32)
        self._processors = [_named(entry, processors) for entry in sampling.logits_processors]
        self._penalties: Penalties | None = None
        if Penalties.wanted(sampling):
            self._penalties = Penalties(sampling, prompt, output)

    @staticmethod
    def wanted(sampling: SamplingParams) -> bool:
        """Return whether a sequence has any rule."""
        return bool(
            sampling.allowed_token_ids is not None
            or sampling.bad_words_token_ids
            or sampling.min_tokens
            or sampling.logit_bias
            or sampling.logits_processors
            or Penalties.wanted(sampling)
        )

    def add(self, token: int) -> None:
        """Count one more token of the output."""
        if self._penalties is not None:
            self._penalties.add(token)

    def apply(self, logits: Floats, prompt: Ints, output: Ints) -> Floats:
        """Return a new row of logits with the rules applied."""
        if self._allowed is None:
            row = logits.copy()
        else:
            row = np.full_like(logits, -np.inf)
            row[self._allowed] = logits[self._allowed]
        for word in self._bad_words:
            *before, last = word
            if (
                len(output) >= len(before)
                and output[len(output) - len(before) :].tolist() == before
            ):
                row[last] = -np.inf
        if len(output) < self._min_tokens:
            row[self._stop_ids] = -np.inf
        row[self._biased] += self._bias
        for processor in self._processors:
            row = _process(processor, prompt, output, row)
        if self._penalties is not None:
            self._penalties.apply(row)
        if row.max() == -np.inf:
            raise SamplingError(
                "no token is left to choose: allowed_token_ids, bad_words, min_tokens and the "
                "logits processors together forbid all of them"
            )
        return row


def _named(
    entry: str | LogitsProcessor, processors: Mapping[str, LogitsProcessor]
) -> LogitsProcessor:
    if not isinstance(entry, str):
        return entry
    if entry not in processors:
        known = ", ".join(sorted(processors)) or "none"
        raise SamplingError(
            f"logits processor {entry!r} is unknown to this engine; it was started with: {known}"
        )
    return processors[entry]


def _process(processor: LogitsProcessor, prompt: Ints, output: Ints, row: Floats) -> Floats:
    """Call a user's function; any error of it fails only the request."""
    name = getattr(processor, "__name__", type(processor).__name__)
    size = row.shape
    try:
        result = np.array(processor(prompt.copy(), output.copy(), row), np.float32)
    except Exception as error:
        raise SamplingError(
            f"logits processor {name} failed: {type(error).__name__}: {error}"
        ) from error
    if result.shape != size:
        raise SamplingError(
            f"logits processor {name} returned shape {result.shape}; it must return {size}"
        )
    if np.isnan(result).any() or (result == np.inf).any():
        raise SamplingError(
            f"logits processor {name} returned NaN or infinity; it may return finite numbers, "
            "and -inf for tokens that must not be chosen"
        )
    return result
