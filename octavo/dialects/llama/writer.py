"""Answers in llama.cpp's form: events that end with all numbers, or one object, or a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from octavo.api.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.core.stats import RequestStats
from octavo.dialects.common.dialect import frame
from octavo.dialects.common.timings import LlamaTimings, ProgressReader, timings_of
from octavo.dialects.common.writer import read_deltas
from octavo.dialects.llama.dialect import error_form
from octavo.dialects.llama.schema import LlamaAnswer, LlamaChunk, LlamaSampling
from octavo.dialects.llama.settings import generation_settings
from octavo.formats.deltas import FinishDelta
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.bounds.turns import Turns
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, PreparedRequest, TokenCounts
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_NEVER = -9999.0  # JSON has no minus infinity


class LlamaWriter(BaseWriter):
    """The answers to one request, an object each."""

    def __init__(
        self,
        request: LlamaSampling,
        most: int | None,
        is_list: bool,
        exchange: Exchange,
        prepared: PreparedRequest,
    ) -> None:
        server = exchange.server
        self._request = request
        self._most = most
        self._is_list = is_list
        self._drops = prepared.asked.drops_output
        self._num_samples = prepared.sampling.n
        self._prompts = prepared.prompts
        self._model = exchange.model_name
        self._tokenizer = server.llm.model.tokenizer
        self._room = server.llm.facts.longest_tokens
        self._settings = generation_settings(
            prepared.sampling, server.llm.model, request, is_limited=most is not None
        )
        self._clock = server.clock
        # By answer: the tokens so far, whether a line has ended, and the end.
        self._num_tokens: dict[int, int] = {}
        self._has_line: dict[int, bool] = {}
        self._stats: dict[int, RequestStats] = {}  # by prompt
        self._cached: dict[int, int] = {}
        self._progresses: dict[int, ProgressReader] = {}  # of prompts that are reported
        if request.return_progress:
            self._progresses = {place: ProgressReader() for place in range(len(self._prompts))}

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield an event for what is new of each answer, and one for its end."""
        self._note(prompt_index, output)
        if self._progresses:
            yield from self._progress(prompt_index)
        for one in output.outputs:
            index = prompt_index * self._num_samples + one.index
            text, finish = self._read(index, one)
            if (text or one.token_ids) and not self._drops:
                chunk = LlamaChunk(
                    index=index,
                    content=text,
                    tokens=one.token_ids,
                    tokens_predicted=self._num_tokens[index],
                    tokens_evaluated=self._prompts[prompt_index].num_tokens,
                )
                if self._request.timings_per_token:
                    chunk.timings = self._timings(prompt_index, self._num_tokens[index])
                if self._request.n_probs:
                    chunk.completion_probabilities = yield from self._probabilities(one)
                yield frame(encode(chunk))
            if finish is not None:
                answer = self._answer(prompt_index, index, finish)
                yield frame(encode(self._reduced(answer)))

    def failure(self, error: ApiError) -> bytes:
        """Return the event of an error that ends the stream."""
        return frame(encode({"error": error_form(error)}))

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the answer, or the list of answers."""
        turns, before = Turns(), b"[" if self._is_list else b""
        for prompt_index, output in enumerate(outputs):
            self._note(prompt_index, output)
            for one in output.outputs:
                if turns.is_due():
                    yield TURN
                index = prompt_index * self._num_samples + one.index
                text, finish = self._read(index, one)
                answer = self._answer(prompt_index, index, finish)
                if not self._drops:
                    answer.content = text
                    if self._request.return_tokens:
                        answer.tokens = one.token_ids
                    if self._request.n_probs:
                        answer.completion_probabilities = yield from self._probabilities(one)
                yield before + encode(self._reduced(answer))
                before = b","
        if self._is_list:
            yield b"]"

    def _note(self, prompt_index: int, output: RequestOutput) -> None:
        if output.metrics is not None:
            self._stats[prompt_index] = output.metrics
        if output.num_cached_tokens is not None:
            self._cached[prompt_index] = output.num_cached_tokens

    def _read(self, index: int, one: CompletionOutput) -> tuple[str, FinishDelta | None]:
        """Return the new text and the end, if it is there; count the tokens."""
        text, finish = read_deltas(one.deltas)
        self._num_tokens[index] = self._num_tokens.get(index, 0) + len(one.token_ids)
        self._has_line[index] = self._has_line.get(index, False) or "\n" in text
        return text, finish

    def _answer(self, prompt_index: int, index: int, finish: FinishDelta | None) -> LlamaAnswer:
        """Return the object with all numbers, without text and tokens."""
        prompt = self._prompts[prompt_index]
        num_generated = 0 if self._drops else self._num_tokens[index]
        is_word = finish is not None and isinstance(finish.stop, str)
        reason = None if finish is None else finish.reason
        stop_type = {"length": "limit", "stop": "word" if is_word else "eos"}.get(reason or "")
        is_full = prompt.num_tokens + num_generated >= self._room
        return LlamaAnswer(
            index=index,
            content="",
            tokens=[],
            model=self._model,
            tokens_predicted=num_generated,
            tokens_evaluated=prompt.num_tokens,
            generation_settings=self._settings,
            prompt=prompt.text,
            has_new_line=self._has_line[index],
            truncated=is_full and reason == "length" and num_generated != self._most,
            stop_type="limit" if self._drops else stop_type or "none",
            stopping_word=str(finish.stop) if finish is not None and is_word else "",
            tokens_cached=self._cached.get(prompt_index, 0),
            timings=self._timings(prompt_index, num_generated),
        )

    def _timings(self, prompt_index: int, num_generated: int) -> LlamaTimings:
        return timings_of(
            self._stats.get(prompt_index),
            self._prompts[prompt_index].num_tokens,
            self._cached.get(prompt_index, 0),
            num_generated,
            self._clock(),
        )

    def _progress(self, prompt_index: int) -> Iterator[bytes]:
        """Yield an event for each part of the prompt that has been computed since the last."""
        stats = self._stats.get(prompt_index)
        if stats is None or prompt_index not in self._progresses:
            return
        index = prompt_index * self._num_samples
        for progress, timings in self._progresses[prompt_index].new(stats):
            chunk = LlamaChunk(
                index=index,
                content="",
                tokens=[],
                tokens_predicted=0,
                tokens_evaluated=progress.processed,
                prompt_progress=progress,
            )
            if self._request.timings_per_token:
                chunk.timings = timings
            yield frame(encode(chunk))
        if stats.first_token_at is not None:
            del self._progresses[prompt_index]

    def _reduced(self, answer: LlamaAnswer) -> Any:
        """Return the answer, or the fields of it that were asked for."""
        names = self._request.response_fields
        if not names:
            return answer
        whole = msgspec.to_builtins(answer)
        reduced = {}
        for name in names:
            found: Any = whole
            for part in name.split("/"):
                found = found.get(part, UNSET) if isinstance(found, dict) else UNSET
            if found is not UNSET:
                reduced[name] = found
        return reduced

    def _probabilities(self, one: CompletionOutput) -> Any:
        """Yield turns; return the chosen token and the likeliest ones at each position."""
        turns, listed = Turns(), []
        for position in one.logprobs or ():
            if turns.is_due():
                yield TURN
            listed.append(self._position(position))
        return listed

    def _position(self, position: Mapping[int, Logprob]) -> dict[str, Any]:
        chosen = next(iter(position))
        likeliest = sorted(position.items(), key=lambda pair: -pair[1].logprob)
        most = self._request.n_probs or 0
        top = [self._token(token, logprob) for token, logprob in likeliest[:most]]
        return {**self._token(chosen, position[chosen]), "top_logprobs": top}

    def _token(self, token: int, logprob: Logprob) -> dict[str, Any]:
        exact = self._tokenizer.token_bytes(token)
        return {
            "id": token,
            "token": exact.decode("utf-8", "replace"),
            "bytes": list(exact),
            "logprob": max(logprob.logprob, _NEVER),
        }
