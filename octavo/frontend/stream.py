"""One continuation on its way to the user: tokens to text, stop strings, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.core.plan import HiddenPayload, LogprobsPayload, TokenLogprobs
from octavo.core.request import TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.frontend.outputs import CompletionOutput, Logprob, PromptLogprobs
from octavo.frontend.stop_strings import StopStrings
from octavo.frontend.tokenizer import Tokenizer


class Stream:
    """What has come of one continuation, and what of it has not been handed on yet."""

    def __init__(
        self, index: int, prompt: Sequence[int], sampling: SamplingParams, tokenizer: Tokenizer
    ) -> None:
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._detokenizer = None
        if sampling.detokenize:
            self._detokenizer = tokenizer.detokenizer(
                skip_special_tokens=sampling.skip_special_tokens,
                spaces_between_special_tokens=sampling.spaces_between_special_tokens,
                context=prompt,
            )
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop_str_in_output)
        self._num_taken = (0, 0)  # tokens and characters handed on as deltas
        self.whole = CompletionOutput(index)
        if sampling.logprobs is not None:
            self.whole.logprobs = []
            self.whole.cumulative_logprob = 0.0
        self.hidden_state: list[float] | None = None
        self.prompt_logprobs: PromptLogprobs | None = None
        if sampling.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(prompt)

    def push(self, event: TokenEvent) -> bool:
        """Take an event; whether the engine is to be told to stop, because the text has ended."""
        whole = self.whole
        assert not whole.finished(), "an event after the end"
        assert event.position == len(whole.token_ids), f"token {event.position} out of order"
        payload = event.payload if isinstance(event.payload, LogprobsPayload) else None
        if isinstance(event.payload, HiddenPayload):
            self.hidden_state = event.payload.values.tolist()
        if payload is not None and self.prompt_logprobs is not None:
            for offset, told in enumerate(payload.prompt):
                self.prompt_logprobs[payload.prompt_start + offset] = self._explain(told)
        for number, token in enumerate(event.tokens):
            whole.token_ids.append(token)
            if payload is not None and whole.logprobs is not None:
                self._add_logprobs(payload.sampled[number])
            is_stop = event.finish_reason == "stop" and number == len(event.tokens) - 1
            if self._detokenizer is None or (is_stop and self._hides_stop):
                continue
            may_stop = len(whole.token_ids) >= self._sampling.min_tokens
            whole.text += self._stops.push(self._detokenizer.push(token), may_stop=may_stop)
            if self._stops.matched is not None:
                whole.finish_reason, whole.stop_reason = "stop", self._stops.matched
                return event.finish_reason is None
        if event.finish_reason is not None:
            self._finish(event)
        return False

    def fail(self, message: str) -> None:
        """End here, with what has come so far."""
        self.whole.finish_reason, self.whole.error = "error", message

    def take(self) -> CompletionOutput:
        """What is new since the last time."""
        whole = self.whole
        num_tokens, num_characters = self._num_taken
        self._num_taken = len(whole.token_ids), len(whole.text)
        return CompletionOutput(  # once a token: dataclasses.replace takes several times as long
            whole.index,
            whole.text[num_characters:],
            whole.token_ids[num_tokens:],
            whole.cumulative_logprob,
            None if whole.logprobs is None else whole.logprobs[num_tokens:],
            whole.finish_reason,
            whole.stop_reason,
            whole.error,
        )

    def snapshot(self) -> CompletionOutput:
        """What has come so far; it stays as it is when more comes."""
        whole = self.whole
        logprobs = None if whole.logprobs is None else whole.logprobs[:]
        return replace(whole, token_ids=whole.token_ids[:], logprobs=logprobs)

    @property
    def _hides_stop(self) -> bool:
        """A token that ends the sequence is among its ids, but not in its text."""
        return not self._sampling.include_stop_str_in_output

    def _finish(self, event: TokenEvent) -> None:
        whole = self.whole
        whole.finish_reason, whole.stop_reason = event.finish_reason, event.stop_token
        if self._detokenizer is not None:
            may_stop = len(whole.token_ids) >= self._sampling.min_tokens
            whole.text += self._stops.push(self._detokenizer.finish(), may_stop=may_stop)
            whole.text += self._stops.finish()
            if self._stops.matched is not None:  # completed by what stood in for half a character
                whole.finish_reason, whole.stop_reason = "stop", self._stops.matched

    def _add_logprobs(self, told: TokenLogprobs) -> None:
        assert self.whole.logprobs is not None
        assert self.whole.cumulative_logprob is not None
        self.whole.logprobs.append(self._explain(told))
        self.whole.cumulative_logprob += told.logprobs[0]

    def _explain(self, told: TokenLogprobs) -> dict[int, Logprob]:
        """The token that stands there first, then the likeliest, best first."""
        text_of = self._tokenizer.text_of
        pairs = zip(told.token_ids, told.logprobs, strict=True)
        named = {
            token: Logprob(logprob, place, text_of(token))
            for place, (token, logprob) in enumerate(pairs)
        }
        first = told.token_ids[0]  # the second time it comes, it has the place of the likeliest
        named[first] = Logprob(told.logprobs[0], told.rank, text_of(first))
        return named
