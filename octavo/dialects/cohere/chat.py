"""/v2/chat: the translation of a conversation into OpenAI's form, and of errors back."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from octavo.dialects.cohere.schema import CohereBlock, CohereChatRequest, CohereMessage
from octavo.dialects.cohere.writer import CohereWriter
from octavo.dialects.common.parameters import chat_request
from octavo.dialects.common.schema.chat import ChatRequest, Message
from octavo.dialects.common.schema.shapes import JsonSchema, ResponseFormat
from octavo.dialects.common.schema.tools import PastCall, PastFunction, Tool
from octavo.serving.operation import GenerationRequest
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid, not_yet
from octavo.transport.exchange import encode

_PLAN_FORMATS = ("cohere_command3",)  # which write a plan where others write their reasoning
_NAMES = {
    "top_k": "k",
    "top_p": "p",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.token_budget",
    "chat_template": "messages",
    "response_format.json_schema.schema": "response_format.json_schema",
}
_SHAPE = "response_format.json_schema"
_CHOICES: dict[str | None, Any] = {"REQUIRED": "required", "NONE": "none", None: None}


def translate(context: TranslationContext, request: CohereChatRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation."""
    same = _as_chat(request)
    try:
        asked = chat_request(context, same)
    except ApiError as error:
        raise error.renamed(_NAMES) from None
    reasoning = context.formats.formats.reasoning
    plans = reasoning is not None and reasoning.name in _PLAN_FORMATS
    if context.cohere_is_reasoning_model is not None:
        plans = not context.cohere_is_reasoning_model
    has_plan = plans and bool(request.tools) and request.thinking is None
    asked.writer = partial(CohereWriter, has_plan)
    named = asked.named
    asked.named = lambda error, index: named(error, index).renamed(_NAMES)
    return asked


def _as_chat(request: CohereChatRequest) -> ChatRequest:
    """Return the same request in OpenAI's form."""
    thinking = request.thinking
    variables: dict[str, Any] = {}
    if thinking is not None:
        thinks = thinking.type == "enabled"
        variables.update(enable_thinking=thinks, thinking=thinks)
    if request.safety_mode is not None:
        variables["safety_mode"] = request.safety_mode
    documents: list[dict[str, Any]] | None = None
    if request.documents:
        documents = [
            {"text": each} if isinstance(each, str) else each.data for each in request.documents
        ]
    return ChatRequest(
        model=request.model,
        messages=[
            _message(message, f"messages[{index}]")
            for index, message in enumerate(request.messages)
        ],
        stream=request.stream,
        tools=_tools(request),
        tool_choice=_CHOICES[request.tool_choice],
        documents=documents,
        response_format=_format(request),
        chat_template_kwargs=variables or None,
        max_tokens=request.max_tokens,
        stop=request.stop_sequences or None,
        temperature=request.temperature,
        seed=request.seed,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        top_k=request.k,
        top_p=request.p,
        thinking_token_budget=None if thinking is None else thinking.token_budget,
        priority=request.priority,
    )


def _tools(request: CohereChatRequest) -> list[Tool] | None:
    if not (request.tools and request.strict_tools):
        return request.tools
    return [replace(each, function=replace(each.function, strict=True)) for each in request.tools]


def _format(request: CohereChatRequest) -> ResponseFormat | None:
    """Return the shape of the answer in OpenAI's form; None if it is free."""
    given = request.response_format
    if given is None or given.type == "text":
        if given is not None and given.json_schema is not None:
            raise invalid(f"{_SHAPE} needs the type json_object", _SHAPE)
        return None
    if given.json_schema is None:
        return ResponseFormat(type="json_object")
    named = JsonSchema(name="answer", body=given.json_schema)
    return ResponseFormat(type="json_schema", json_schema=named)


def _message(message: CohereMessage, where: str) -> Message:
    """Return a message in OpenAI's form; raise ApiError for what is not supported."""
    content, thinking = message.content, message.tool_plan
    if isinstance(content, list):
        place = f"{where}.content"
        if not content and message.role != "assistant":
            raise invalid(f"{place} is empty: give at least one block", place)
        thoughts = [each.thinking or "" for each in content if each.type == "thinking"]
        thinking = "\n".join(thoughts) if thoughts else thinking
        texts = [
            text_of(each, f"{place}[{index}]")
            for index, each in enumerate(content)
            if each.type != "thinking"
        ]
        content = "\n".join(texts)
    calls = [
        PastCall(
            id=call.id,
            function=PastFunction(name=call.function.name, arguments=call.function.arguments),
        )
        for call in message.tool_calls or ()
    ]
    return Message(
        role=message.role,
        content=content,
        reasoning_content=thinking,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
    )


def text_of(block: CohereBlock, where: str) -> str:
    """Return the text of a block; that of a document is its data as JSON."""
    if block.type == "document" and block.document is not None:
        return encode(block.document.data).decode()
    if block.type not in ("text", "document"):
        raise not_yet(f"{where}.type", f"{block.type!r}: this model reads text; send it as text")
    if block.text is None:
        raise invalid(f"{where}.{block.type} is missing", f"{where}.{block.type}")
    return block.text
