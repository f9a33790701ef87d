"""/v1/completions: continuations of texts and of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.core.sampling_params import SamplingParams
from octavo.server.admission import Ticket
from octavo.server.generation import Generation, TokenCounts
from octavo.server.http.deadline import RequestTask
from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.exchange import Exchange, encode
from octavo.server.openai.common import TEXT, Template, admitted, closing, decoded, usage_of
from octavo.server.openai.logprobs import (
    Position,
    TokenTexts,
    completion_logprobs,
    prompt_logprobs,
)
from octavo.server.openai.parameters import (
    bad_words_of,
    check_stream_options,
    fitted,
    generation_request,
    of_one,
    sampling_of,
    seconds_of,
)
from octavo.server.schema.completion import (
    MAX_PROMPTS,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from octavo.server.schema.sampling import MAX_N
from octavo.text.prompt_worker import PreparedPrompt, PromptJob

DEFAULT_MAX_TOKENS = 16


async def completions(exchange: Exchange) -> None:
    """Handle POST /v1/completions: continue one prompt or several."""
    async with admitted(exchange) as ticket:
        request = await exchange.read(CompletionRequest)
        exchange.server.check_model(request.model)
        check_stream_options(request)
        task = RequestTask(exchange)
        seconds = seconds_of(request, exchange)
        await task.run(_serve(exchange, ticket, request, task), seconds)


async def _serve(
    exchange: Exchange, ticket: Ticket, request: CompletionRequest, task: RequestTask
) -> None:
    num_samples = request.n or 1
    asked = _prompts(request.prompt)
    if len(asked) * num_samples > MAX_N:
        raise invalid(
            f"{len(asked)} prompts with n={num_samples} are more than {MAX_N} texts", "prompt"
        )
    prepared: list[PreparedPrompt] = []
    bad_words = bad_words_of(request)
    for index, each in enumerate(asked):
        try:
            prepared.append(await _prepare(exchange, request, each, [] if index else bad_words))
        except ApiError as error:
            raise of_one(error, index, len(asked)) from None
    wanted = request.max_tokens
    if wanted is None:
        wanted = max(DEFAULT_MAX_TOKENS, request.min_tokens)
    drops_output = wanted == 0
    if drops_output and not request.echo:
        raise invalid("max_tokens=0 needs echo=true, or the answer would be empty", "max_tokens")
    prompts, max_tokens = await fitted(exchange, request, prepared, max(1, wanted))
    given = {"max_tokens": max_tokens, "logprobs": request.logprobs}
    if request.echo and request.logprobs is not None:
        given["prompt_logprobs"] = request.logprobs
    sampling = sampling_of(request, prepared[0], exchange.server.llm.model.defaults, **given)
    shape = CompletionShape(exchange, request, prompts, sampling, drops_output)
    generation = generation_request(
        exchange, request, prompts, sampling, shape, drops_output=drops_output
    )
    await Generation(exchange, ticket, generation, task).run()


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


async def _prepare(
    exchange: Exchange, request: CompletionRequest, prompt: str | list[int], bad_words: list[str]
) -> PreparedPrompt:
    server = exchange.server
    if isinstance(prompt, str):
        special = request.add_special_tokens
        job = PromptJob(text=prompt, add_special_tokens=special, bad_words=bad_words)
        return await server.prompt_pool.prepare(job, exchange.owner)
    words: list[list[int]] = []
    if bad_words:
        job = PromptJob(text="", bad_words=bad_words)
        words = (await server.prompt_pool.prepare(job, exchange.owner)).bad_words_token_ids
    model, text = server.llm.model, ""
    # A prompt of ids needs no text unless it is echoed; one that is far too long is not decoded.
    if request.echo and len(prompt) <= 2 * model.facts.max_model_len:
        text = await decoded(model.tokenizer, prompt)
    return PreparedPrompt(text=text, token_ids=prompt, bad_words_token_ids=words)


class CompletionShape:
    """Completions, written as chunks or as a whole."""

    def __init__(
        self,
        exchange: Exchange,
        request: CompletionRequest,
        prompts: list[PreparedPrompt],
        sampling: SamplingParams,
        drops_output: bool,
    ) -> None:
        server = exchange.server
        self._request = request
        self._prompts = prompts
        self._sampling = sampling
        self._drops_output = drops_output
        self._id = f"cmpl-{exchange.request_id}"
        self._created = server.wall_time()
        self._model = server.model_name
        self._fingerprint = server.fingerprint
        self._texts = TokenTexts(
            server.llm.model.tokenizer, bool(request.return_tokens_as_token_ids)
        )
        self._offsets: dict[int, int] = {}  # by choice, where its next token's text begins
        options = request.stream_options
        self._sends_usage = bool(options and options.include_usage)
        self._sends_usage_always = bool(options and options.continuous_usage_stats)
        self._sends_text_only = not (
            self._sends_usage_always
            or request.return_token_ids
            or request.logprobs is not None
            or drops_output
        )
        self._templates: dict[int, Template] = {}  # by choice

    def opening(self) -> Iterable[bytes]:
        """Return nothing: completions begin with text."""
        return ()

    def payloads(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each continuation that has something new."""
        for one in output.outputs:
            if not (one.token_ids or one.text or one.finished()):
                continue
            index = prompt_index * self._sampling.n + one.index
            if self._sends_text_only and one.text and one.finish_reason is None:
                template = self._templates.get(index)
                if template is not None:  # the first may hold more
                    yield template.filled(one.text)
                    continue
                choice = CompletionChoice(index=index, text=TEXT)
                self._templates[index] = Template(self._response([choice]))
            choice = self._choice(prompt_index, output, one)
            if choice.text or choice.finish_reason or choice.logprobs or choice.token_ids:
                chunk = self._response([choice])
                if self._sends_usage_always:
                    chunk.usage = usage_of(counts)
                yield encode(chunk)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the usage, in a chunk of its own."""
        usage = usage_of(counts) if self._sends_usage else None
        return closing(self._response([]), usage, explanation)

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
        index = prompt_index * self._sampling.n + one.index
        is_first = index not in self._offsets
        text = "" if self._drops_output else one.text
        choice = CompletionChoice(index=index, text=text)
        choice.finish_reason = one.finish_reason
        if one.finished():
            choice.stop_reason = one.stop_reason
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
