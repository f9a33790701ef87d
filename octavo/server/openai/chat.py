"""/v1/chat/completions: answers to conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.formats.deltas import TextDelta
from octavo.server.http.errors import invalid
from octavo.server.http.exchange import Exchange, encode
from octavo.server.openai.common import TEXT, OpenAIWriter, Template, read_deltas, usage_of
from octavo.server.openai.conversation import conversation_job
from octavo.server.openai.dialect import frame
from octavo.server.openai.logprobs import Pieces, chat_logprobs, prompt_logprobs
from octavo.server.openai.parameters import generation_request
from octavo.server.openai.schema.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from octavo.server.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.server.server import Server

ANSWERER = "assistant"


def translate(server: Server, request: ChatRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation."""
    server.check_model(request.model)
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
    job = conversation_job(request, server.config)
    return generation_request(request, [job], wanted, logprobs, ChatWriter)


class ChatWriter(OpenAIWriter):
    """Chat answers, written as chunks or as a whole."""

    def __init__(self, request: ChatRequest, exchange: Exchange, prepared: PreparedRequest) -> None:
        super().__init__(exchange, request, prepared, "chatcmpl-")
        self._request = request
        (self._prompt,) = prepared.prompts
        self._num_choices = prepared.sampling.n
        self._most = prepared.sampling.logprobs
        last = request.messages[-1]
        self._echoed = ""
        self._role = ANSWERER
        if request.echo and last.role == ANSWERER and isinstance(last.content, str):
            self._echoed = last.content
        self._sends_text_only = not (
            self._sends_usage_always or request.return_token_ids or self._most is not None
        )

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Yield the warnings, and the role once for each answer."""
        yield from self._warned(self._chunk([], counts))
        for index in range(self._num_choices):
            delta = Delta(role=self._role, content="")
            chunk = self._chunk([ChunkChoice(index=index, delta=delta)], counts)
            if self._request.return_token_ids and index == 0:
                chunk.prompt_token_ids = self._prompt.token_ids
            yield frame(encode(chunk))
            if self._echoed:
                delta = Delta(content=self._echoed)
                yield frame(encode(self._chunk([ChunkChoice(index=index, delta=delta)], counts)))

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each answer that has something new."""
        for one in output.outputs:
            deltas = one.deltas
            if self._sends_text_only and len(deltas) == 1 and type(deltas[0]) is TextDelta:
                template = self._templates.get(one.index)
                if template is None:
                    choice = ChunkChoice(index=one.index, delta=Delta(content=TEXT))
                    template = self._templates[one.index] = Template(self._chunk([choice], counts))
                yield encode(deltas[0].text).join(template.sides)
                continue
            choice = ChunkChoice(index=one.index, delta=Delta())
            text, finish = read_deltas(deltas)
            if text:
                choice.delta.content = text
            if finish is not None:
                choice.finish_reason, choice.stop_reason = finish.reason, finish.stop
            if self._most is not None and one.logprobs:
                choice.logprobs = yield from self._logprobs(one)
            if self._request.return_token_ids:
                choice.token_ids = one.token_ids
            if not (deltas or choice.logprobs or choice.token_ids):
                continue  # part of a character, or text that may become a stop string
            yield frame(encode(self._chunk([choice], counts)))

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the usage, in a chunk of its own, and the end."""
        return self._closing(self._chunk([], counts), counts, explanation)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterator[bytes]:
        """Yield the response with all answers."""
        (output,) = outputs
        choices: list[ChatChoice] = []
        for one in output.outputs:
            choice = yield from self._choice(one)
            choices.append(choice)
        response = ChatResponse(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage_of(counts),
            system_fingerprint=self._fingerprint,
        )
        if self._request.return_token_ids:
            response.prompt_token_ids = output.prompt_token_ids
        if output.prompt_logprobs is not None:
            most = self._request.prompt_logprobs or 0
            written: Any = yield from prompt_logprobs(output.prompt_logprobs, most)
            response.prompt_logprobs = written
        if explanation is not None:
            response.explain = explanation
        if self._warnings:
            response.warnings = self._warnings
        yield encode(response)

    def _choice(self, one: CompletionOutput) -> Pieces[ChatChoice]:
        text, _ = read_deltas(one.deltas)
        choice = ChatChoice(
            index=one.index,
            message=AnswerMessage(role=self._role, content=self._echoed + text),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        if self._most is not None:
            choice.logprobs = yield from self._logprobs(one)
        if self._request.return_token_ids:
            choice.token_ids = one.token_ids
        return choice

    def _logprobs(self, one: CompletionOutput) -> Pieces[Any]:
        assert self._most is not None
        return chat_logprobs(one.logprobs or (), self._most, self._texts)

    def _chunk(self, choices: list[ChunkChoice], counts: TokenCounts) -> ChatChunk:
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
        )
        if self._sends_usage_always:
            chunk.usage = usage_of(counts)
        return chunk
