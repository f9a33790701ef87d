"""Answers of the Responses API, as events or as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.dialects.common.blocks import Block, BlockWriter
from octavo.dialects.common.dialect import event
from octavo.dialects.common.logprobs import Pieces, TokenTexts, chat_logprobs
from octavo.dialects.common.writer import TEXT
from octavo.dialects.responses.dialect import ID_PREFIX, error_fields, response_error
from octavo.dialects.responses.namespaces import NAMESPACE, Origin, origins_of
from octavo.dialects.responses.schema import (
    InputTokensDetails,
    OutputTokensDetails,
    RawMessage,
    ResponseObject,
    ResponsesRequest,
    ResponseUsage,
)
from octavo.formats.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.exchange import Exchange
from octavo.serving.operation import PreparedRequest, TokenCounts
from octavo.serving.schema.queries import bounded_number, query_of
from octavo.serving.store.responses import FINAL, Entry, ResponseStore
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PreparedPrompt


@dataclass(slots=True)
class OutputItem(Block):
    """One item: reasoning, a message or a call."""

    id: str = ""
    namespace: str = ""  # of a call's function
    logprobs: list[Any] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        """The place of the item's content, as its events have it; that of a call has no part."""
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        if self.kind is not ToolCallDelta:
            place["content_index"] = 0
        return place

    def part(self) -> dict[str, Any]:
        """Return the only part of the item's content."""
        if self.kind is ReasoningDelta:
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }

    def shown(self, status: str, *, has_content: bool = True) -> dict[str, Any]:
        """Return the item as responses contain it."""
        if self.kind is ToolCallDelta:
            call = {
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": self.call_id,
                "name": self.name,
                "arguments": self.text if has_content else "",
            }
            return {**call, "namespace": self.namespace} if self.namespace else call
        content = [self.part()] if has_content else []
        if self.kind is ReasoningDelta:
            return {
                "id": self.id,
                "type": "reasoning",
                "status": status,
                "summary": [],
                "content": content,
            }
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class RawMessages:
    """The prompt and the answer as the model has them: with all marks, and as tokens."""

    def __init__(self, prompt: PreparedPrompt) -> None:
        self._prompt = prompt
        self._texts: list[str] = []
        self._tokens: list[int] = []

    def add(self, one: CompletionOutput) -> None:
        """Add what is new of the answer."""
        self._texts.append(one.text)
        self._tokens += one.token_ids

    @property
    def input(self) -> list[RawMessage]:
        """The prompt, as a list of one."""
        return [RawMessage(message=self._prompt.text, tokens=self._prompt.token_ids)]

    @property
    def output(self) -> list[RawMessage]:
        """The answer so far, as a list of one."""
        return [RawMessage(message="".join(self._texts), tokens=self._tokens)]


COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"
CANCELLED, FAILED, QUEUED = "cancelled", "failed", "queued"
STARTING_AFTER = "starting_after"
MOST_EVENTS = 10**9  # of a response
# Errors that end a connection, and not a durable request.
_CONTINUED = ("server_shutdown", "stream_taken_over")
_LOGPROBS = "message.output_text.logprobs"
_PREFIXES: dict[type[Delta], str] = {TextDelta: "msg", ReasoningDelta: "rs", ToolCallDelta: "fc"}
_DELTAS: dict[type[Delta], str] = {
    TextDelta: "response.output_text",
    ReasoningDelta: "response.reasoning_text",
    ToolCallDelta: "response.function_call_arguments",
}


class ResponseWriter(BlockWriter[OutputItem]):
    """The writer of one response, whose items are its blocks.

    The events of a stream depend on nothing but the tokens: each token has its own. So the numbers
    of events are the same whenever the answer is written, and one that continues leaves out those
    that its client knows.
    """

    id_prefix = "call_"

    def __init__(
        self, request: ResponsesRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        super().__init__(exchange.request_id, OutputItem)
        server = exchange.server
        self._clock = server.wall_time
        self._logprobs_each = prepared.sampling.logprobs
        self._texts = TokenTexts(server.llm.model.tokenizer, False)
        self._waiting: list[Any] = []  # log-probabilities without an event yet
        self._number = 0  # of the next event
        self._known = known_number(exchange)  # the number of the last event that the client has
        self._origins = origins_of(request.tools)
        self._ending = COMPLETED  # the status of the item that ends next
        if request.include_reasoning is False:
            self.leaves_out = ReasoningDelta
        self.response = response_to(request, exchange, prepared)
        self._raw: RawMessages | None = None
        if request.enable_response_messages:
            self._raw = RawMessages(prepared.prompts[0])
        self._is_durable = server.durability is not None
        self._store: ResponseStore | None = None
        self.entry: Entry | None = None

    def opening(self, counts: TokenCounts) -> Iterator[bytes]:
        """Yield the events with the response, which has no output yet."""
        self.response.status = IN_PROGRESS
        if self.entry is not None and not self.entry.is_final:
            self.entry.status = IN_PROGRESS
        yield from self._begun({"response": msgspec.to_builtins(self.response)})

    def _begun(self, shown: dict[str, Any]) -> Iterator[bytes]:
        yield from self._event("response.created", shown)
        yield from self._event("response.in_progress", shown)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield the events of the deltas; the first of an item opens it."""
        (one,) = output.outputs
        if self._raw is not None:
            self._raw.add(one)
        if self._logprobs_each is not None:
            yield from self._read_logprobs(one)
        yield from super().frames(prompt_index, output, counts)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterator[bytes]:
        """Yield the end of the last item, and the event with the whole response."""
        if self._open is None:
            self._open = self._last_item()
            yield from self._begin(self._open)
        self._ending = self._status if self._status == COMPLETED else INCOMPLETE
        yield from self._close()
        self.end(counts)
        name = f"response.{self._ending}"
        yield from self._event(name, {"response": msgspec.to_builtins(self.response)})

    def failure(self, error: ApiError) -> bytes:
        """Return the event of an error that ends the stream."""
        if error.code in _CONTINUED and self._is_durable:
            return b"".join(self._event("error", error_fields(error)))
        self.response.error = response_error(error)
        return self._ended_early(FAILED, "response.failed")

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response with all items."""
        (one,) = outputs[0].outputs
        if self._raw is not None:
            self._raw.add(one)
        self._read(outputs)
        self._last_item()
        if self._logprobs_each is not None:
            yield from self._read_logprobs(one)
            for item in self._blocks:
                if item.kind is TextDelta:
                    item.logprobs, self._waiting = self._waiting, []
                    break
        self.end(counts)
        yield encode(self.response)

    def end(self, counts: TokenCounts) -> None:
        """Complete the response when the answer has ended."""
        response, status = self.response, self._status
        response.status = status
        response.output = self._output(COMPLETED if status == COMPLETED else INCOMPLETE)
        if status == INCOMPLETE:
            response.incomplete_details = {"reason": "max_output_tokens"}
        response.completed_at = self._clock() if status == COMPLETED else None
        response.usage = usage_of(counts)
        if counts.timing is not None:
            response.metrics = counts.timing
        if self._raw is not None:
            response.input_messages, response.output_messages = self._raw.input, self._raw.output
        self._settle()

    # what is kept

    def keep(self, store: ResponseStore, entry: Entry | None) -> None:
        """Keep the response when it has ended, unless there is no room for it."""
        self._store, self.entry = store, entry
        self.response.store = entry is not None
        if entry is not None:
            entry.answerer = self

    def shown(self, status: str) -> bytes:
        """Return the response as it is now, with this status."""
        output = self._output(INCOMPLETE if status in FINAL else IN_PROGRESS)
        return encode(msgspec.structs.replace(self.response, status=status, output=output))

    def cancel(self) -> bytes:
        """End the response because it was cancelled; return its last event."""
        return self._ended_early(CANCELLED, "response.incomplete")

    def _ended_early(self, status: str, name: str) -> bytes:
        """Return the event that ends a stream, behind those that begin it if it has not begun."""
        self.response.status = status
        self.response.output = self._output(INCOMPLETE)
        self._settle()
        shown = {"response": msgspec.to_builtins(self.response)}
        begun = () if self._number else self._begun(shown)
        self._ending = INCOMPLETE
        return b"".join((*begun, *self._close(), *self._event(name, shown)))

    def _settle(self) -> None:
        if self.entry is not None and self._store is not None:
            self._store.settle(self.entry, self.response.status, encode(self.response))

    # events

    def _event(self, name: str, fields: dict[str, Any]) -> Iterator[bytes]:
        """Yield an event with the next number, unless the client knows it."""
        number, self._number = self._number, self._number + 1
        if number > self._known:
            yield event(name, {**fields, "sequence_number": number})

    def _begin(self, block: OutputItem) -> Iterator[bytes]:
        added = {"output_index": block.index, "item": block.shown(IN_PROGRESS, has_content=False)}
        yield from self._event("response.output_item.added", added)
        if block.kind is not ToolCallDelta:
            part = {**block.part(), "text": ""}
            yield from self._event("response.content_part.added", {**block.place, "part": part})
        self._prepare(event(f"{_DELTAS[block.kind]}.delta", {**block.place, "delta": TEXT}))

    def _more(self, text: str) -> bytes:
        number, self._number = self._number, self._number + 1
        item, logprobs = self._open, b""
        assert item is not None, "it was begun with its first delta"
        item.texts.append(text)
        if item.kind is TextDelta:
            made, self._waiting = self._waiting, []
            item.logprobs += made
            logprobs = b',"logprobs":' + encode(made)
        if number <= self._known:
            return b""
        new = encode(text)
        return b'%b%b%b,"sequence_number":%d}\n\n' % (self._sides[0], new, logprobs, number)

    def _end(self, block: OutputItem) -> Iterator[bytes]:
        done = f"{_DELTAS[block.kind]}.done"
        if block.kind is ToolCallDelta:
            said = {**block.place, "name": block.name, "arguments": block.text}
            yield from self._event(done, said)
        else:
            said = {**block.place, "text": block.text}
            if block.kind is TextDelta:
                said["logprobs"] = block.logprobs
            yield from self._event(done, said)
            said = {**block.place, "part": block.part()}
            yield from self._event("response.content_part.done", said)
        ended = {"output_index": block.index, "item": block.shown(self._ending)}
        yield from self._event("response.output_item.done", ended)

    # items

    def _new(self, delta: TextDelta | ReasoningDelta | ToolCallDelta, index: int) -> OutputItem:
        item = super()._new(delta, index)
        item.id = f"{_PREFIXES[item.kind]}_{self._name}_{index}"
        origin = self._origins.get(item.name, Origin(item.name))
        item.name, item.namespace = origin.name, origin.namespace
        return item

    def _last_item(self) -> OutputItem:
        """Return the last item of an answer that has ended; one of nothing is an empty message."""
        return self._blocks[-1] if self._blocks else self._block_of(TextDelta(""))

    @property
    def _status(self) -> str:
        """The status of an answer that has ended."""
        reason = None if self._finish is None else self._finish.reason
        return {"abort": CANCELLED, "length": INCOMPLETE}.get(reason or "", COMPLETED)

    def _output(self, status: str) -> list[dict[str, Any]]:
        """Return all items; the last has the status, and those before it are complete."""
        last = len(self._blocks) - 1
        return [each.shown(status if each.index == last else COMPLETED) for each in self._blocks]

    def _read_logprobs(self, one: CompletionOutput) -> Pieces[None]:
        """Keep the log-probabilities of new tokens for the text; those of reasoning are left."""
        assert self._logprobs_each is not None
        positions = list(one.logprobs or ())[one.num_reasoning_tokens :]
        written = yield from chat_logprobs(positions, self._logprobs_each, self._texts)
        self._waiting += msgspec.json.decode(written)["content"]


def response_to(
    request: ResponsesRequest, exchange: Exchange, prepared: PreparedRequest
) -> ResponseObject:
    """Return the response to a request, without output."""
    sampling, reasoning, text = prepared.sampling, request.reasoning, request.text
    shape = None if text is None else text.format
    shown_text: dict[str, Any] = {"format": {"type": "text"}}
    if shape is not None:
        shown_text["format"] = msgspec.to_builtins(shape)
    if text is not None and text.verbosity is not None:
        shown_text["verbosity"] = text.verbosity
    response = ResponseObject(
        id=f"{ID_PREFIX}{exchange.request_id}",
        created_at=exchange.created,
        model=exchange.model_name,
        status=IN_PROGRESS,
        output=[],
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        reasoning={"effort": None if reasoning is None else reasoning.effort, "summary": None},
        store=request.store is not False,
        temperature=sampling.temperature,
        text=shown_text,
        tools=[_shown_tool(msgspec.to_builtins(each)) for each in request.tools or ()],
        top_logprobs=request.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=request.truncation or "disabled",
    )
    if request.tool_choice is not None:
        response.tool_choice = msgspec.to_builtins(request.tool_choice)
    if prepared.warnings:
        response.warnings = prepared.warnings
    return response


def known_number(exchange: Exchange) -> int:
    """Return the number of the last event that a client has, -1 for none."""
    given = query_of(exchange).get(STARTING_AFTER)
    if given is None:
        return -1
    known = bounded_number(given, 0, MOST_EVENTS)
    if known is None:
        raise invalid(
            f"{STARTING_AFTER}: expected the number of an event, from 0 to {MOST_EVENTS}, got "
            f"{given[:32]!r}",
            STARTING_AFTER,
        )
    return known


def wants_logprobs(request: ResponsesRequest) -> bool:
    """Return whether a request asks for log-probabilities."""
    return request.top_logprobs is not None or _LOGPROBS in (request.include or ())


def usage_of(counts: TokenCounts) -> ResponseUsage:
    """Return the token counts in the form of this dialect."""
    return ResponseUsage(
        input_tokens=counts.prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=counts.cached),
        output_tokens=counts.generated,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=counts.reasoning),
        total_tokens=counts.prompt + counts.generated,
    )


def _shown_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool without what the request has left out."""
    needed = ("name",) if tool["type"] == NAMESPACE else ("name", "parameters", "strict")
    if tool.get("tools") is not None:
        tool = {**tool, "tools": list(map(_shown_tool, tool["tools"]))}
    return {name: value for name, value in tool.items() if value is not None or name in needed}
