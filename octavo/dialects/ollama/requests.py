"""From the fields of Ollama's dialect to the neutral request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.dialects.common.conversation import past_call
from octavo.dialects.common.parameters import given_fields
from octavo.dialects.common.samplers import given_samplers
from octavo.dialects.common.shapes import shape_at
from octavo.dialects.common.tools import NO_ARGUMENTS, by_name, described, use_of_tools
from octavo.dialects.ollama.schema import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaRequest,
    OllamaTool,
)
from octavo.dialects.ollama.writer import OllamaWriter
from octavo.serving.answers.tool_use import NO_TOOLS, ToolUse, made_id
from octavo.serving.operation import GenerationRequest
from octavo.serving.translation import TranslationContext
from octavo.text.chat.messages import THINKING_SWITCHES
from octavo.transport.errors import OF_PROMPTS, invalid, not_yet
from octavo.workers.answer_shape import CallableTool
from octavo.workers.jobs import PromptJob

# Neutral names of sampling values, and those of the options.
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_NAMES = {
    **{name: f"options.{own}" for name, own in _SAMPLING.items()},
    "top_p": "options.top_p",
    "typical_p": "options.typical_p",
    "repeat_last_n": "options.repeat_last_n",
    **{name: f"options.{name}" for name in ("mirostat", "mirostat_tau", "mirostat_eta")},
    "stop": "options.stop",
    "max_tokens": "options.num_predict",
    "structured_outputs": "format",
    "structured_outputs.json": "format",
    "structured_outputs.json_object": "format",
}
_SMALLEST_TOP_P = 1e-9  # instead of 0, which is the most likely token alone too


def translate_chat(context: TranslationContext, request: OllamaChatRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation."""
    use = _tool_use(request.tools or ())
    context.formats.check(use)
    messages = _messages(context, request.messages or ())
    conversation = _conversation(context, request, messages, use)
    return _generation(context, request, conversation, use, is_chat=True)


def translate_generate(
    context: TranslationContext, request: OllamaGenerateRequest
) -> GenerationRequest:
    """Return the neutral form of a request to answer a prompt, or to continue it as it is."""
    if request.raw:
        if request.system:
            raise invalid("system has no effect with raw=true; write it into the prompt", "system")
        return _generation(
            context, request, PromptJob(text=request.prompt or ""), NO_TOOLS, is_chat=False
        )
    messages = [{"role": "user", "content": request.prompt or ""}]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    conversation = _conversation(context, request, messages, NO_TOOLS)
    return _generation(context, request, conversation, NO_TOOLS, is_chat=False)


def _generation(
    context: TranslationContext,
    request: OllamaRequest,
    job: PromptJob,
    use: ToolUse,
    *,
    is_chat: bool,
) -> GenerationRequest:
    sampling, most = _sampling(request.options or OllamaOptions())
    names = {**_NAMES, **dict.fromkeys(OF_PROMPTS, "messages" if is_chat else "prompt")}
    asked = GenerationRequest(
        prompts=[job],
        sampling=sampling,
        writer=partial(OllamaWriter, is_chat),
        named=lambda error, index: error.renamed(names),
        default_max_tokens=most,
        is_stream=request.stream is not False,
        shape=_shape(request.format),
    )
    context.formats.bind(asked, use, context.facts.vocabulary)
    return asked


def _sampling(options: OllamaOptions) -> tuple[dict[str, Any], int | None]:
    """Return the neutral values of sampling, and the limit of the answer."""
    if options.tfs_z not in (None, 1):
        raise not_yet("options.tfs_z", "this sampler is not supported; send 1")
    sampling = {**given_fields(options, _SAMPLING), **given_samplers(options)}
    if options.top_p is not None:
        sampling["top_p"] = max(options.top_p, _SMALLEST_TOP_P)
    if sampling.get("seed", 0) < 0:
        del sampling["seed"]  # as there: one is drawn
    if options.stop:
        sampling["stop"] = [options.stop] if isinstance(options.stop, str) else options.stop
    most = options.num_predict
    if most == 0:
        raise invalid("options.num_predict=0 leaves no token for an answer", "options.num_predict")
    return sampling, most if most is not None and most > 0 else None


def _shape(wanted: str | dict[str, Any] | None) -> StructuredOutputsParams | None:
    if not wanted:
        return None
    return shape_at("format", **{"json_object": True} if wanted == "json" else {"json": wanted})


def _tool_use(tools: Sequence[OllamaTool]) -> ToolUse:
    """Return what a request says about tools; the answer may always do without them."""
    if not tools:
        return NO_TOOLS
    found, shown = list[CallableTool](), list[dict[str, Any]]()
    for index, each in enumerate(tools):
        name, about = each.function.name, each.function.description
        parameters = each.function.parameters or NO_ARGUMENTS
        place = f"[{index}].function.parameters"
        found.append(CallableTool(name, parameters, strict=False, place=place))
        shown.append(described(name, parameters=parameters, description=about))
    return use_of_tools(shown, by_name(found))


def _conversation(
    context: TranslationContext,
    request: OllamaRequest,
    messages: list[dict[str, Any]],
    use: ToolUse,
) -> PromptJob:
    """Return the job for a worker; an answer at the end is continued."""
    variables: dict[str, Any] = {}
    if request.think is not None:
        variables.update(dict.fromkeys(THINKING_SWITCHES, bool(request.think)))
        if isinstance(request.think, str):
            variables["reasoning_effort"] = request.think
    is_continued = bool(messages) and messages[-1]["role"] == "assistant"
    is_continued = is_continued and "tool_calls" not in messages[-1]
    conversation = context.conversation(messages, variables, use, is_continued=is_continued)
    return PromptJob(conversation=conversation, add_special_tokens=False)


def _messages(context: TranslationContext, given: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Return messages as templates read them; calls and results get ids, which they lack here."""
    messages: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # names and ids of calls without a result
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if message.images:
            raise not_yet(f"{where}.images", "this model reads text; send it as text")
        fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            fields["reasoning_content"] = message.thinking
        if message.tool_calls:
            open_calls = []
            calls = fields["tool_calls"] = []
            for number, call in enumerate(message.tool_calls):
                call_id = context.formats.known_id(call.id or made_id(f"{index}/{number}"))
                name, arguments = call.function.name, call.function.arguments
                open_calls.append((name, call_id or ""))
                calls.append(past_call(name, arguments, call_id))
        if message.role == "tool":
            _add_result(context, fields, message, open_calls)
        messages.append(fields)
    return messages


def _add_result(
    context: TranslationContext,
    fields: dict[str, Any],
    message: OllamaMessage,
    open_calls: list[tuple[str, str]],
) -> None:
    """Say which call a result answers: as it says itself, or the first of its tool, or of all."""
    if message.tool_name:
        fields["name"] = message.tool_name
    if message.tool_call_id:
        fields["tool_call_id"] = context.formats.known_id(message.tool_call_id)
        return
    named_alike = [each for each in open_calls if each[0] == message.tool_name]
    for call in (named_alike or open_calls)[:1]:
        fields["tool_call_id"] = call[1]
        fields.setdefault("name", call[0])
        open_calls.remove(call)
