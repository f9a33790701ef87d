"""/v1/chat/completions: answers to conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.core.sampling_params import SamplingParams
from octavo.server.admission import Ticket
from octavo.server.generation import Generation, TokenCounts
from octavo.server.http.deadline import RequestTask
from octavo.server.http.errors import invalid
from octavo.server.http.exchange import Exchange, encode
from octavo.server.openai.common import TEXT, Template, admitted, closing, usage_of
from octavo.server.openai.conversation import conversation_job
from octavo.server.openai.logprobs import TokenTexts, chat_logprobs, prompt_logprobs
from octavo.server.openai.parameters import (
    bad_words_of,
    check_stream_options,
    fitted,
    generation_request,
    sampling_of,
    seconds_of,
)
from octavo.server.schema.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatRequest,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from octavo.text.prompt_worker import PreparedPrompt

ANSWERER = "assistant"


async def chat(exchange: Exchange) -> None:
    """Handle POST /v1/chat/completions: continue a conversation."""
    async with admitted(exchange) as ticket:
        request = await exchange.read(ChatRequest)
        exchange.server.check_model(request.model)
        check_stream_options(request)
        task = RequestTask(exchange)
        seconds = seconds_of(request, exchange)
        await task.run(_serve(exchange, ticket, request, task), seconds)


async def _serve(
    exchange: Exchange, ticket: Ticket, request: ChatRequest, task: RequestTask
) -> None:
    server = exchange.server
    job = conversation_job(request, server.config, bad_words_of(request))
    prepared = await server.prompt_pool.prepare(job, exchange.owner)
    wanted, named = request.max_completion_tokens, "max_completion_tokens"
    if wanted is None:
        wanted, named = request.max_tokens, "max_tokens"
    if wanted == 0:
        raise invalid(f"{named}=0 leaves no token for an answer; leave it out", named)
    logprobs = None
    if request.logprobs:
        logprobs = request.top_logprobs or 0
    elif request.top_logprobs:
        raise invalid("top_logprobs needs logprobs=true", "top_logprobs")
    prompts, max_tokens = await fitted(exchange, request, [prepared], wanted)
    defaults = server.llm.model.defaults
    sampling = sampling_of(request, prepared, defaults, max_tokens=max_tokens, logprobs=logprobs)
    shape = ChatShape(exchange, request, prompts[0], sampling)
    generation = generation_request(exchange, request, prompts, sampling, shape)
    await Generation(exchange, ticket, generation, task).run()


class ChatShape:
    """Chat answers, written as chunks or as a whole."""

    def __init__(
        self,
        exchange: Exchange,
        request: ChatRequest,
        prompt: PreparedPrompt,
        sampling: SamplingParams,
    ) -> None:
        server = exchange.server
        self._request = request
        self._prompt = prompt
        self._num_choices = sampling.n
        self._most = sampling.logprobs
        self._id = f"chatcmpl-{exchange.request_id}"
        self._created = server.wall_time()
        self._model = server.model_name
        self._fingerprint = server.fingerprint
        self._texts = TokenTexts(
            server.llm.model.tokenizer, bool(request.return_tokens_as_token_ids)
        )
        last = request.messages[-1]
        self._echoed = ""
        self._role = ANSWERER
        if request.echo and last.role == ANSWERER and isinstance(last.content, str):
            self._echoed = last.content
        options = request.stream_options
        self._sends_usage = bool(options and options.include_usage)
        self._sends_usage_always = bool(options and options.continuous_usage_stats)
        self._sends_text_only = not (
            self._sends_usage_always or request.return_token_ids or self._most is not None
        )
        self._templates: dict[int, Template] = {}  # by answer

    def opening(self) -> Iterable[bytes]:
        """Yield the role, once for each answer."""
        for index in range(self._num_choices):
            delta = Delta(role=self._role, content="")
            chunk = self._chunk([ChunkChoice(index=index, delta=delta)])
            if self._request.return_token_ids and index == 0:
                chunk.prompt_token_ids = self._prompt.token_ids
            yield encode(chunk)
            if self._echoed:
                delta = Delta(content=self._echoed)
                yield encode(self._chunk([ChunkChoice(index=index, delta=delta)]))

    def payloads(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each answer that has something new."""
        for one in output.outputs:
            if self._sends_text_only and one.text and one.finish_reason is None:
                yield self._template(one.index).filled(one.text)
                continue
            choice = ChunkChoice(index=one.index, delta=Delta())
            if one.text:
                choice.delta.content = one.text
            if self._most is not None and one.logprobs:
                choice.logprobs = self._logprobs(one)
            if self._request.return_token_ids:
                choice.token_ids = one.token_ids
            if one.finished():
                choice.finish_reason, choice.stop_reason = one.finish_reason, one.stop_reason
            if not (one.text or one.finished() or choice.logprobs or choice.token_ids):
                continue  # part of a character, or text that may become a stop string
            chunk = self._chunk([choice])
            if self._sends_usage_always:
                chunk.usage = usage_of(counts)
            yield encode(chunk)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the usage, in a chunk of its own."""
        usage = usage_of(counts) if self._sends_usage else None
        return closing(self._chunk([]), usage, explanation)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> bytes:
        """Return the response with all answers."""
        (output,) = outputs
        response = ChatResponse(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(one) for one in output.outputs],
            usage=usage_of(counts),
            system_fingerprint=self._fingerprint,
        )
        if self._request.return_token_ids:
            response.prompt_token_ids = output.prompt_token_ids
        if output.prompt_logprobs is not None:
            response.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, self._texts)
        if explanation is not None:
            response.explain = explanation
        return encode(response)

    def _choice(self, one: CompletionOutput) -> ChatChoice:
        choice = ChatChoice(
            index=one.index,
            message=AnswerMessage(role=self._role, content=self._echoed + one.text),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        if self._most is not None:
            choice.logprobs = self._logprobs(one)
        if self._request.return_token_ids:
            choice.token_ids = one.token_ids
        return choice

    def _logprobs(self, one: CompletionOutput) -> ChatLogprobs:
        assert self._most is not None
        return chat_logprobs(one.logprobs or (), self._most, self._texts)

    def _template(self, index: int) -> Template:
        template = self._templates.get(index)
        if template is None:
            choice = ChunkChoice(index=index, delta=Delta(content=TEXT))
            template = self._templates[index] = Template(self._chunk([choice]))
        return template

    def _chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
        )
