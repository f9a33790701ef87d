"""One continuation on its way to the user: tokens to text, stop strings, log-probabilities."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from octavo.api.outputs import CompletionOutput, Logprob, PromptLogprobs
from octavo.core.plan import HiddenPayload, LogprobsPayload, TokenLogprobs
from octavo.core.request import TokenEvent
from octavo.core.sampling_params import RequestOutputKind, SamplingParams
from octavo.text.stop_strings import StopStrings
from octavo.text.tokenizer import Tokenizer


class Continuation:
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
        self._stops = None
        if sampling.stop and sampling.detokenize:
            self._stops = StopStrings(sampling.stop, include=sampling.include_stop_str_in_output)
        # Where nobody sees the middle, not even a stop string, the text is made at the end.
        is_final = sampling.output_kind is RequestOutputKind.FINAL_ONLY
        self._reads_late = is_final and self._stops is None
        self._num_taken = 0  # tokens handed on as deltas
        self._fresh: list[str] = []  # text that has not been handed on, nor put to the whole
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
        assert whole.finish_reason is None, "an event after the end"
        assert event.position == len(whole.token_ids), f"token {event.position} out of order"
        sampled = () if event.payload is None else self._heed(event.payload)
        for number, token in enumerate(event.tokens):
            whole.token_ids.append(token)
            if sampled:
                self._add_logprobs(sampled[number])
            is_stop = event.finish_reason == "stop" and number == len(event.tokens) - 1
            if is_stop and self._hides_stop:
                continue
            if self._detokenizer is None or self._reads_late:
                continue
            if self._let_through(self._detokenizer.push(token)):
                return event.finish_reason is None
        if event.finish_reason is not None:
            self._finish(event)
        return False

    def fail(self, message: str) -> None:
        """End here, with what has come so far."""
        self.whole.finish_reason, self.whole.error = "error", message
        if self._reads_late:
            with contextlib.suppress(Exception):  # its text may be what failed
                self._read(self.whole.token_ids)

    def take(self) -> CompletionOutput:
        """What is new since the last time."""
        whole, fresh = self.whole, self._fresh
        num_tokens, self._num_taken = self._num_taken, len(whole.token_ids)
        self._fresh = []
        return CompletionOutput(  # once a token: dataclasses.replace takes several times as long
            whole.index,
            "".join(fresh),
            whole.token_ids[num_tokens:],
            whole.cumulative_logprob,
            None if whole.logprobs is None else whole.logprobs[num_tokens:],
            whole.finish_reason,
            whole.stop_reason,
            whole.error,
        )

    def snapshot(self) -> CompletionOutput:
        """What has come so far; it stays as it is when more comes."""
        whole = self.everything()
        logprobs = None if whole.logprobs is None else whole.logprobs[:]
        return replace(whole, token_ids=whole.token_ids[:], logprobs=logprobs)

    def everything(self) -> CompletionOutput:
        """What has come so far, itself; where nothing is taken as a delta."""
        self.whole.text += "".join(self._fresh)
        self._fresh = []
        return self.whole

    @property
    def _hides_stop(self) -> bool:
        """A token that ends the sequence is among its ids, but not in its text."""
        return not self._sampling.include_stop_str_in_output

    def _finish(self, event: TokenEvent) -> None:
        whole = self.whole
        whole.finish_reason, whole.stop_reason = event.finish_reason, event.stop_token
        if self._detokenizer is None:
            return
        if self._reads_late:
            is_hidden = event.finish_reason == "stop" and event.tokens and self._hides_stop
            self._read(whole.token_ids[:-1] if is_hidden else whole.token_ids)
        self._let_through(self._detokenizer.finish())  # may complete a stop string
        if self._stops is not None:
            self._fresh.append(self._stops.finish())

    def _read(self, token_ids: Sequence[int]) -> None:
        """Make the text of all at once."""
        if self._detokenizer is not None:
            self._reads_late = False  # not again, should it fail
            self._fresh.append(self._detokenizer.push_all(token_ids))

    def _let_through(self, text: str) -> bool:
        """Text that has become whole: whether it ends with a stop string, and the stream there."""
        if self._stops is not None:
            whole = self.whole
            may_stop = len(whole.token_ids) >= self._sampling.min_tokens
            text = self._stops.push(text, may_stop=may_stop)
            if self._stops.matched is not None:
                whole.finish_reason, whole.stop_reason = "stop", self._stops.matched
                self._fresh.append(text)
                return True
        if text:
            self._fresh.append(text)
        return False

    def _heed(self, payload: object) -> Sequence[TokenLogprobs]:
        """What comes beside tokens; the log-probabilities of the sampled ones, if asked for."""
        if isinstance(payload, HiddenPayload):
            self.hidden_state = payload.values.tolist()
        if not isinstance(payload, LogprobsPayload):
            return ()
        if self.prompt_logprobs is not None:
            for offset, told in enumerate(payload.prompt):
                self.prompt_logprobs[payload.prompt_start + offset] = self._explain(told)
        return () if self.whole.logprobs is None else payload.sampled

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
