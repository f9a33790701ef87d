"""One continuation on its way to the user: tokens to text, stop strings, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.request import TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.frontend.outputs import CompletionOutput
from octavo.frontend.stop_strings import StopStrings
from octavo.frontend.tokenizer import Tokenizer


class Stream:
    """What has come of one continuation, and what of it has not been handed on yet."""

    def __init__(
        self, index: int, prompt: Sequence[int], sampling: SamplingParams, tokenizer: Tokenizer
    ) -> None:
        self._sampling = sampling
        self._detokenizer = None
        if sampling.detokenize:
            self._detokenizer = tokenizer.detokenizer(
                skip_special_tokens=sampling.skip_special_tokens,
                spaces_between_special_tokens=sampling.spaces_between_special_tokens,
                context=prompt,
            )
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop_str_in_output)
        self._num_tokens = 0
        self.whole = CompletionOutput(index)
        self._fresh = CompletionOutput(index)

    def push(self, event: TokenEvent) -> bool:
        """Take an event; whether the engine should be told to stop, because the text has ended."""
        assert not self.whole.finished(), "an event after the end"
        assert event.position == self._num_tokens, f"token {event.position} out of order"
        stopped_by_token = event.finish_reason == "stop"
        text = ""
        for number, token in enumerate(event.tokens, 1):
            self._num_tokens += 1
            self._append_token(token)
            is_end = stopped_by_token and number == len(event.tokens)
            if self._detokenizer is not None and not (is_end and self._hides_stop_token()):
                may_stop = self._num_tokens >= self._sampling.min_tokens
                text += self._stops.push(self._detokenizer.push(token), may_stop=may_stop)
            if self._stops.matched is not None:
                self._finish(text, "stop", self._stops.matched)
                return event.finish_reason is None
        if event.finish_reason is None:
            self._append_text(text)
            return False
        if self._detokenizer is not None:
            text += self._stops.push(self._detokenizer.finish())
            text += self._stops.finish()
        self._finish(text, event.finish_reason, event.stop_token)
        return False

    def take(self) -> CompletionOutput:
        """What is new since the last time."""
        fresh, self._fresh = self._fresh, CompletionOutput(self.whole.index)
        return fresh

    def _hides_stop_token(self) -> bool:
        return not self._sampling.include_stop_str_in_output

    def _append_token(self, token: int) -> None:
        self.whole.token_ids.append(token)
        self._fresh.token_ids.append(token)

    def _append_text(self, text: str) -> None:
        self.whole.text += text
        self._fresh.text += text

    def _finish(self, text: str, reason: str, stop: int | str | None) -> None:
        self._append_text(text)
        for output in (self.whole, self._fresh):
            output.finish_reason = reason
            output.stop_reason = stop
