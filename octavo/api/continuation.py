"""One continuation of a prompt: tokens to text, stop strings, log-probabilities."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from octavo.api.logprobs import PositionLogprobs
from octavo.api.outputs import CompletionOutput
from octavo.api.reading import AnswerReader, Reading
from octavo.core.plan import HiddenPayload, LogprobsPayload, TokenLogprobs
from octavo.core.request import TokenEvent
from octavo.core.sampling_params import RequestOutputKind, SamplingParams
from octavo.core.stats import RequestStats
from octavo.formats.deltas import Delta, FinishDelta, TextDelta
from octavo.text.detokenizer import Detokenizer
from octavo.text.stop_strings import StopStrings
from octavo.text.token_table import TokenTable

REPETITION_DETECTED = "repetition_detected"  # a stop reason of vLLM
MOST_UNREAD = 1024  # tokens that are decoded together: more would hold up other streams


class Meter(Protocol):
    """A count of the tokens of a request's continuations, kept while they come."""

    def add(self, num_tokens: int, seconds: float | None) -> None:
        """Count new tokens of a continuation, so long after its last ones; None: its first."""

    def end(self, num_tokens: int, seconds: float) -> None:
        """Count the end of a continuation, and the time from its first to its last tokens."""


class Continuation:
    """The output of one continuation so far, and the part that has not been sent yet."""

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        tokenizer: TokenTable,
        reading: Reading | None = None,  # None: the answer is text alone
        meter: Meter | None = None,
    ) -> None:
        self._sampling = sampling
        self._reader = None
        if reading is not None:
            self._reader = AnswerReader(reading.make_parser(), keeps_apart=reading.keeps_apart)
        self._tokenizer = tokenizer
        self._detokenizer = None
        if sampling.detokenize:
            self._detokenizer = Detokenizer(
                tokenizer.bytes_by_token,
                skip_special_tokens=sampling.skip_special_tokens,
                spaces_between_special_tokens=sampling.spaces_between_special_tokens,
                kept=frozenset() if reading is None else reading.kept,
                context=prompt,
            )
        self._stops = None
        if sampling.stop and sampling.detokenize:
            self._stops = StopStrings(sampling.stop, include=sampling.include_stop_str_in_output)
        # If only the end is needed, even for stop strings, many tokens are decoded together. With
        # a parser, which takes the text of each token, that would save nothing.
        is_final = sampling.output_kind is RequestOutputKind.FINAL_ONLY
        self._reads_late = is_final and self._stops is None and self._reader is None
        self._takes_ids_alone = self._reads_late or self._detokenizer is None
        self._num_read = 0  # tokens of that kind that were decoded
        self._num_taken = 0  # tokens sent as deltas
        self._meter = meter
        self._num_measured = 0  # tokens that the meter has counted
        self._first_at = self._last_at = 0.0  # of those
        self._fresh: list[str] = []  # text that is neither sent nor in `whole` yet
        self._num_reasoning = 0  # tokens of reasoning that were taken
        # The reader, if it keeps the deltas of tokens apart, and where those of each token begin.
        keeps_apart = self._detokenizer is not None and reading is not None and reading.keeps_apart
        self._apart = self._reader if keeps_apart else None
        self._starts: list[int] = []
        self.whole = CompletionOutput(index)
        source = tokenizer if sampling.detokenize else None
        self._logprobs: PositionLogprobs | None = None
        if sampling.logprobs is not None:
            self.whole.cumulative_logprob = 0.0
            self._logprobs = self.whole.logprobs = PositionLogprobs(
                self.whole.token_ids,
                prompt,
                source,
                skip_special_tokens=sampling.skip_special_tokens,
                spaces_between_special_tokens=sampling.spaces_between_special_tokens,
                are_likeliest=not sampling.logprob_token_ids,
            )
        self.hidden_state: array[float] | None = None
        self.prompt_logprobs: PositionLogprobs | None = None
        if sampling.prompt_logprobs is not None:
            self.prompt_logprobs = PositionLogprobs(prompt, tokenizer=source)
            self.prompt_logprobs.put(len(prompt), ())
            if source is not None:
                rest = source.detokenizer(skip_special_tokens=False, context=prompt)
                self.prompt_logprobs.end(rest.finish())

    def push(self, event: TokenEvent) -> bool:
        """Take an event; return whether the text has ended, so that the engine must stop."""
        whole = self.whole
        assert whole.finish_reason is None, "an event after the end"
        assert event.position == len(whole.token_ids), f"token {event.position} out of order"
        if self._takes_ids_alone and event.payload is None and event.finish_reason is None:
            whole.token_ids.extend(event.tokens)
            if self._reads_late and len(whole.token_ids) - self._num_read >= MOST_UNREAD:
                self._read(len(whole.token_ids))
            return False
        sampled = () if event.payload is None else self._store(event.payload)
        for number, token in enumerate(event.tokens):
            whole.token_ids.append(token)
            if self._apart is not None:
                self._starts.append(self._apart.num_new)
            if sampled:
                self._add_logprobs(sampled[number])
            is_stop = event.finish_reason == "stop" and number == len(event.tokens) - 1
            if is_stop and self._hides_stop:
                continue
            if self._detokenizer is None or self._reads_late:
                continue
            text = self._detokenizer.push(token)
            if self._stops is None:
                self._add(text)
            elif self._let_through(text, self._stops):
                return event.finish_reason is None
        if event.finish_reason is not None:
            self._finish(event)
        elif self._reads_late and len(whole.token_ids) - self._num_read >= MOST_UNREAD:
            self._read(len(whole.token_ids))
        return False

    def measure(self) -> None:
        """Let the meter count what is new."""
        meter = self._meter
        if meter is None:
            return
        num_tokens = len(self.whole.token_ids)
        num_new = num_tokens - self._num_measured
        if num_new:
            now = time.monotonic()
            if self._num_measured:
                meter.add(num_new, now - self._last_at)
            else:
                meter.add(num_new, None)
                self._first_at = now
            self._last_at = now
            self._num_measured = num_tokens
        if self.whole.finish_reason is not None:
            meter.end(num_tokens, self._last_at - self._first_at)

    def count_predicted(self, stats: RequestStats) -> None:
        """Count the drafts from the request's prediction so far."""
        whole, accepted = self.whole, stats.num_accepted_predicted
        whole.num_accepted_prediction_tokens = accepted
        whole.num_rejected_prediction_tokens = stats.num_predicted - accepted

    def fail(self, message: str) -> None:
        """End the continuation with an error; keep what has come so far."""
        self.whole.finish_reason, self.whole.error = "error", message
        if self._reads_late:
            with contextlib.suppress(Exception):  # perhaps it is the text that fails
                self._read(len(self.whole.token_ids))

    def take(self) -> CompletionOutput:
        """Return what is new since the last call."""
        whole, text = self.whole, "".join(self._fresh)
        num_tokens, self._num_taken = self._num_taken, len(whole.token_ids)
        self._fresh = []
        starts, self._starts = self._starts, []
        deltas: Sequence[Delta] = (TextDelta(text),) if text else ()
        num_reasoning = 0
        if self._reader is not None:
            deltas, num_reasoning = self._read_new(self._reader)
        if whole.finish_reason is not None:
            deltas = (*deltas, FinishDelta(whole.finish_reason, whole.stop_reason))
        return CompletionOutput(  # once a token: dataclasses.replace takes several times as long
            whole.index,
            text,
            whole.token_ids[num_tokens:],
            whole.cumulative_logprob,
            None if whole.logprobs is None else whole.logprobs[num_tokens:],
            whole.finish_reason,
            whole.stop_reason,
            whole.error,
            deltas,
            num_reasoning,
            starts,
            whole.num_accepted_prediction_tokens,
            whole.num_rejected_prediction_tokens,
        )

    def snapshot(self) -> CompletionOutput:
        """Return a copy of the whole so far, which later events do not change."""
        whole = self.everything()
        logprobs = None if self._logprobs is None else self._logprobs.copy()
        return replace(whole, token_ids=whole.token_ids[:], logprobs=logprobs)

    def everything(self) -> CompletionOutput:
        """Return the whole so far, without copying; not to be mixed with `take`."""
        whole = self.whole
        whole.text += "".join(self._fresh)
        self._fresh = []
        if whole.finish_reason is not None and not whole.deltas:
            deltas: Sequence[Delta] = (TextDelta(whole.text),) if whole.text else ()
            if self._reader is not None:
                deltas, whole.num_reasoning_tokens = self._read_new(self._reader)
            whole.deltas = (*deltas, FinishDelta(whole.finish_reason, whole.stop_reason))
        return whole

    def _read_new(self, reader: AnswerReader) -> tuple[Sequence[Delta], int]:
        """Return what is new to the parser, and how many of its tokens are reasoning."""
        if self.whole.finish_reason is not None:
            reader.finish("")
        num_before, self._num_reasoning = self._num_reasoning, reader.num_reasoning
        return reader.take(), reader.num_reasoning - num_before

    def _add(self, text: str) -> None:
        """Add the text of one token."""
        self._fresh.append(text)
        if self._reader is not None:
            self._reader.push(text)

    def _add_rest(self, text: str) -> None:
        """Add the end of the text, which no token adds."""
        self._fresh.append(text)
        if self._reader is not None:
            self._reader.finish(text)

    @property
    def _hides_stop(self) -> bool:
        """The rule for the token that ends the sequence: True leaves it out of the text."""
        return not self._sampling.include_stop_str_in_output

    def _finish(self, event: TokenEvent) -> None:
        whole = self.whole
        whole.finish_reason, whole.stop_reason = event.finish_reason, event.stop_token
        if event.finish_reason == "repetition":
            whole.stop_reason = REPETITION_DETECTED
        if self._detokenizer is None:
            return
        if self._apart is not None and not event.tokens:
            self._starts.append(self._apart.num_new)
        is_hidden = event.finish_reason == "stop" and bool(event.tokens) and self._hides_stop
        if self._reads_late:
            self._read(len(whole.token_ids) - is_hidden)
        text = self._detokenizer.finish()
        if self._logprobs is not None and not is_hidden:
            self._logprobs.end(text)
        if self._stops is not None:
            text = self._passed(text, self._stops)  # it may complete a stop string
            text += self._stops.finish()
        self._add_rest(text)

    def _read(self, end: int) -> None:
        """Decode the tokens before `end` that were not decoded yet."""
        begin, self._num_read = self._num_read, end  # nor tried again if it fails
        if self._detokenizer is not None:
            self._fresh.append(self._detokenizer.push_all(self.whole.token_ids[begin:end]))

    def _let_through(self, text: str, stops: StopStrings) -> bool:
        """Add a token's text; return whether a stop string in it ends the continuation."""
        self._add(self._passed(text, stops))
        return stops.matched is not None

    def _passed(self, text: str, stops: StopStrings) -> str:
        """Return the text before a stop string, which ends the continuation."""
        whole = self.whole
        may_stop = len(whole.token_ids) >= self._sampling.min_tokens
        text = stops.push(text, may_stop=may_stop)
        if stops.matched is not None:
            whole.finish_reason, whole.stop_reason = "stop", stops.matched
        return text

    def _store(self, payload: object) -> Sequence[TokenLogprobs]:
        """Store an event's payload; return the sampled tokens' log-probabilities, if wanted."""
        if isinstance(payload, HiddenPayload):
            self._store_vectors(payload)
        if not isinstance(payload, LogprobsPayload):
            return ()
        if self.prompt_logprobs is not None and payload.prompt:
            self.prompt_logprobs.put(payload.prompt_start, payload.prompt)
        return () if self._logprobs is None else payload.sampled

    def _store_vectors(self, payload: HiddenPayload) -> None:
        """Store vectors of the prompt; those of its positions come chunk by chunk, in order."""
        width = len(payload.values) // payload.num_vectors
        kept = array("f") if self.hidden_state is None else self.hidden_state
        kept[payload.start * width : payload.start * width + len(payload.values)] = payload.values
        self.hidden_state = kept

    def _add_logprobs(self, entry: TokenLogprobs) -> None:
        assert self._logprobs is not None
        assert self.whole.cumulative_logprob is not None
        self._logprobs.put(len(self._logprobs), (entry,))
        self.whole.cumulative_logprob += entry.logprobs[0]
