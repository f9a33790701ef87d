"""/v1/chat/completions: answers to conversations, as chunks or as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.dialects.common.chat_deltas import DeltaForms
from octavo.dialects.common.dialect import CHAT_ID, frame
from octavo.dialects.common.logprobs import Pieces, chat_logprobs, most_in_chats, prompt_logprobs
from octavo.dialects.common.schema.chat import (
    ChatChoice,
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from octavo.dialects.common.writer import ANSWERER, TEXT, OpenAIWriter, Template, usage_of
from octavo.formats.deltas import FinishDelta, ReasoningDelta, TextDelta
from octavo.serving.answers.tool_use import ToolUse
from octavo.serving.exchange import Exchange
from octavo.serving.operation import PreparedRequest, TokenCounts
from octavo.transport.exchange import encode

_NOTHING = Delta()


class ChatWriter(OpenAIWriter):
    """Chat answers, written as chunks or as a whole."""

    chunk = ChatChunk

    def __init__(
        self, use: ToolUse, request: ChatRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        super().__init__(exchange, request, prepared, CHAT_ID)
        self._request = request
        self._returns_ids = request.return_token_ids and not prepared.asked.hides_tokens
        has_reasoning = request.include_reasoning is not False
        self._has_reasoning = has_reasoning
        self._reasoning_templates: dict[int, Template] = {}  # by choice
        self._forms = DeltaForms(exchange.request_id, use, has_reasoning=has_reasoning)
        (self._prompt,) = prepared.prompts
        self._num_choices = prepared.sampling.n
        self._most = most_in_chats(prepared.sampling)
        last = request.messages[-1]
        self._echoed = ""
        self._role = ANSWERER
        self._opens_with_null = use.must_call
        if request.echo and last.role == ANSWERER and isinstance(last.content, str):
            self._echoed = last.content
        self._sends_text_only = not (
            self._sends_usage_always or self._returns_ids or self._most is not None
        )

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Yield the warnings, and the role once for each answer."""
        yield from self._warned(self._chunk(counts=counts))
        for index in range(self._num_choices):
            # An answer that is calls alone has no content, as in OpenAI's streams.
            delta = Delta(role=self._role, content=None if self._opens_with_null else "")
            chunk = self._chunk(ChunkChoice(index=index, delta=delta), counts=counts)
            if self._request.return_token_ids and index == 0:
                chunk.prompt_token_ids = self._prompt.token_ids
            if self._request.return_prompt_text and index == 0:
                chunk.prompt_text = self._prompt.text
            yield frame(encode(chunk))
            if self._echoed:
                delta = Delta(content=self._echoed)
                choice = ChunkChoice(index=index, delta=delta)
                yield frame(encode(self._chunk(choice, counts=counts)))

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each answer that has something new."""
        for one in output.outputs:
            deltas = one.deltas
            if self._sends_text_only and len(deltas) == 1:
                if type(deltas[0]) is TextDelta:
                    yield self._text_frame(one.index, deltas[0].text)
                    continue
                if type(deltas[0]) is ReasoningDelta and self._has_reasoning:
                    yield self._reasoning_frame(one.index, deltas[0].text)
                    continue
            yield from self._frames_of(one, counts)

    def _text_frame(self, answer: int, text: str) -> bytes:
        """Return a frame that has only text, which is put into a prepared one."""
        template = self._templates.get(answer)
        if template is None:
            choice = ChunkChoice(index=answer, delta=Delta(content=TEXT))
            template = self._templates[answer] = Template(self._chunk(choice))
        return encode(text).join(template.sides)

    def _reasoning_frame(self, answer: int, text: str) -> bytes:
        """Return a frame that has only reasoning, which is put into a prepared one."""
        template = self._reasoning_templates.get(answer)
        if template is None:
            delta = Delta(reasoning=TEXT, reasoning_content=TEXT)
            choice = ChunkChoice(index=answer, delta=delta)
            template = Template(self._chunk(choice), num_texts=2)
            self._reasoning_templates[answer] = template
        return encode(text).join(template.sides)

    def _frames_of(self, one: CompletionOutput, counts: TokenCounts) -> Iterator[bytes]:
        """Yield a chunk for each part of what is new; the last has what concerns them all."""
        *parts, last = [*self._forms.parts(one.index, one.deltas)] or [Delta()]
        for part in parts:
            choice = ChunkChoice(index=one.index, delta=part)
            yield frame(encode(self._chunk(choice, counts=counts)))
        choice = ChunkChoice(index=one.index, delta=last)
        finish = one.deltas[-1] if one.deltas else None
        if isinstance(finish, FinishDelta):
            choice.finish_reason = self._forms.finish_reason(one.index, finish.reason)
            choice.stop_reason = finish.stop
        if self._most is not None and one.logprobs:
            choice.logprobs = yield from self._logprobs(one)
        if self._returns_ids:
            choice.token_ids = one.token_ids
        # Else part of a character, or text that may become a stop string or a mark.
        if last != _NOTHING or choice.finish_reason or choice.logprobs or choice.token_ids:
            yield frame(encode(self._chunk(choice, counts=counts)))

    def _response(self, outputs: list[RequestOutput], counts: TokenCounts) -> Pieces[ChatResponse]:
        (output,) = outputs
        choices = yield from self.choices(output)
        response = ChatResponse(**self._named, choices=choices, usage=usage_of(counts))
        if self._request.return_token_ids:
            response.prompt_token_ids = output.prompt_token_ids
        if self._request.return_prompt_text:
            response.prompt_text = self._prompt.text
        if output.prompt_logprobs is not None:
            most = self._request.prompt_logprobs or 0
            written: Any = yield from prompt_logprobs(output.prompt_logprobs, most)
            response.prompt_logprobs = written
        return response

    def choices(self, output: RequestOutput) -> Pieces[list[ChatChoice]]:
        """Return the answers to a conversation, made in pieces."""
        made: list[ChatChoice] = []
        for one in output.outputs:
            choice = yield from self._choice(one)
            made.append(choice)
        return made

    def _choice(self, one: CompletionOutput) -> Pieces[ChatChoice]:
        message = self._forms.message(one.index, one.deltas, self._role)
        if self._echoed:
            message.content = self._echoed + (message.content or "")
        reason = one.finish_reason
        choice = ChatChoice(
            index=one.index,
            message=message,
            finish_reason=reason and self._forms.finish_reason(one.index, reason),
            stop_reason=one.stop_reason,
        )
        if self._most is not None:
            choice.logprobs = yield from self._logprobs(one)
        if self._returns_ids:
            choice.token_ids = one.token_ids
        return choice

    def _logprobs(self, one: CompletionOutput) -> Pieces[Any]:
        assert self._most is not None
        return chat_logprobs(one.logprobs or (), self._most, self._texts)
