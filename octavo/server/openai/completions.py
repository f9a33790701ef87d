"""/v1/completions: continuations of texts and of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.formats.deltas import TextDelta
from octavo.server.http.errors import invalid
from octavo.server.http.exchange import Exchange, encode
from octavo.server.openai.common import TEXT, OpenAIWriter, Template, read_deltas, usage_of
from octavo.server.openai.dialect import frame
from octavo.server.openai.logprobs import Position, completion_logprobs, prompt_logprobs
from octavo.server.openai.parameters import generation_request
from octavo.server.openai.schema.completion import (
    MAX_PROMPTS,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from octavo.server.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.server.server import Server
from octavo.text.prompt_worker import PromptJob

DEFAULT_MAX_TOKENS = 16


def translate(server: Server, request: CompletionRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue one prompt or several."""
    server.check_model(request.model)
    num_samples = request.n or 1
    asked = _prompts(request.prompt)
    if len(asked) * num_samples > MAX_PROMPTS:
        raise invalid(
            f"{len(asked)} prompts with n={num_samples} are more than {MAX_PROMPTS} texts", "prompt"
        )
    prompts: list[PromptJob | list[int]] = []
    for each in asked:
        if isinstance(each, str):
            prompts.append(PromptJob(text=each, add_special_tokens=request.add_special_tokens))
        else:
            prompts.append(each)
    wanted = request.max_tokens
    if wanted is None:
        wanted = max(DEFAULT_MAX_TOKENS, request.min_tokens)
    drops_output = wanted == 0
    if drops_output and not request.echo:
        raise invalid("max_tokens=0 needs echo=true, or the answer would be empty", "max_tokens")
    made = generation_request(request, prompts, max(1, wanted), request.logprobs, CompletionWriter)
    made.drops_output, made.wants_text = drops_output, bool(request.echo)
    if request.echo and request.logprobs is not None:
        made.sampling["prompt_logprobs"] = request.logprobs
    return made


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """Return one prompt or several as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt is an empty list; give at least one prompt", "prompt")
    if all(isinstance(item, int) for item in prompt):
        return [prompt]
    if any(isinstance(item, int) for item in prompt):
        raise invalid("prompt mixes token ids with whole prompts; give one kind", "prompt")
    if len(prompt) > MAX_PROMPTS:
        raise invalid(f"{len(prompt)} prompts; at most {MAX_PROMPTS} are accepted", "prompt")
    return prompt


class CompletionWriter(OpenAIWriter):
    """Completions, written as chunks or as a whole."""

    def __init__(
        self, request: CompletionRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        super().__init__(exchange, request, "cmpl-")
        self._request = request
        self._prompts = prepared.prompts
        self._num_samples = prepared.sampling.n
        self._drops_output = prepared.asked.drops_output
        self._offsets: dict[int, int] = {}  # by choice, where its next token's text begins
        self._sends_text_only = not (
            self._sends_usage_always
            or request.return_token_ids
            or request.logprobs is not None
            or self._drops_output
        )

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return nothing: completions begin with text."""
        return ()

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each continuation that has something new."""
        for one in output.outputs:
            deltas = one.deltas
            if not (one.token_ids or deltas):
                continue
            index = prompt_index * self._num_samples + one.index
            if self._sends_text_only and len(deltas) == 1 and type(deltas[0]) is TextDelta:
                template = self._templates.get(index)
                if template is not None:  # the first may hold more
                    yield encode(deltas[0].text).join(template.sides)
                    continue
                choice = CompletionChoice(index=index, text=TEXT)
                self._templates[index] = Template(self._response([choice]))
            choice = self._choice(prompt_index, output, one)
            if choice.text or choice.finish_reason or choice.logprobs or choice.token_ids:
                chunk = self._response([choice])
                if self._sends_usage_always:
                    chunk.usage = usage_of(counts)
                yield frame(encode(chunk))

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the usage, in a chunk of its own, and the end."""
        return self._closing(self._response([]), counts, explanation)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> bytes:
        """Return the response with all continuations of all prompts."""
        choices = [
            self._choice(index, output, one)
            for index, output in enumerate(outputs)
            for one in output.outputs
        ]
        response = self._response(choices)
        response.usage = usage_of(counts)
        if explanation is not None:
            response.explain = explanation
        return encode(response)

    def _response(self, choices: list[CompletionChoice]) -> CompletionResponse:
        return CompletionResponse(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
        )

    def _choice(
        self, prompt_index: int, output: RequestOutput, one: CompletionOutput
    ) -> CompletionChoice:
        request = self._request
        index = prompt_index * self._num_samples + one.index
        is_first = index not in self._offsets
        text, finish = read_deltas(one.deltas)
        choice = CompletionChoice(index=index, text="" if self._drops_output else text)
        if finish is not None:
            choice.finish_reason, choice.stop_reason = finish.reason, finish.stop
            if self._drops_output:
                choice.finish_reason, choice.stop_reason = "length", None
        prompt = self._prompts[prompt_index]
        if is_first and request.echo:
            choice.text = prompt.text + choice.text
        choice.logprobs = self._logprobs(index, output, one, echoes=bool(is_first and request.echo))
        self._offsets.setdefault(index, 0)
        if request.return_token_ids:
            choice.token_ids = [] if self._drops_output else one.token_ids
            if is_first:
                choice.prompt_token_ids = prompt.token_ids
        asked = request.prompt_logprobs is not None
        if asked and one.finished() and output.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, self._texts)
        return choice

    def _logprobs(
        self, index: int, output: RequestOutput, one: CompletionOutput, *, echoes: bool
    ) -> CompletionLogprobs | None:
        most = self._request.logprobs
        if most is None:
            return None
        tokens: list[int] = []
        positions: list[Position] = []
        if echoes:
            tokens.extend(output.prompt_token_ids)
            positions.extend(output.prompt_logprobs or [None] * len(tokens))
        if not self._drops_output:
            tokens.extend(one.token_ids)
            positions.extend(one.logprobs or ())
        if not tokens:
            return None
        offset = self._offsets.get(index, 0)
        written, self._offsets[index] = completion_logprobs(
            tokens, positions, most, self._texts, offset
        )
        return written
