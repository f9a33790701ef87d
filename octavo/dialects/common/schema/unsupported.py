"""The fields of other servers that this one ignores, or does not support yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from octavo.serving.schema.rules import FieldRules, Unsupported


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: (
        value is None or any(type(value) is type(each) and value == each for each in values)
    )


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


def _off(value: Any) -> bool:
    return value is False or _empty(value)


def _no_function(value: Any) -> bool:
    return value is None or value in ("none", "auto")


_TOOLS = "tools are for chats; send messages to /v1/chat/completions"
_BEAMS = "beam search is for /v1/completions and /v1/chat/completions"
_TEXT = "only text is supported; leave it out"

# Other fields that ask for a shape of the answer, in the APIs of llama.cpp, TGI, Ollama and
# Anthropic. The answer would not have it, so each is refused.
_SHAPE = "this way to describe a shape is not supported; use response_format or structured_outputs"
SHAPES: Mapping[str, Unsupported] = {
    "grammar_lazy": Unsupported(_off, _SHAPE, "false"),
    "grammar_triggers": Unsupported(_empty, _SHAPE, "[]"),
    "json_object": Unsupported(_off, _SHAPE, "false"),
    "json_mode": Unsupported(_off, _SHAPE, "false"),
    "schema": Unsupported(_empty, _SHAPE, "{}"),
    "format": Unsupported(_empty, _SHAPE, '""'),
    "output_format": Unsupported(_empty, _SHAPE, '""'),
}
# Fields that other servers have, or will have, and misspelt ones: their names have such words.
_SHAPE_WORDS = ("schema", "grammar", "regex", "ebnf", "guided", "structured")

# Fields that vLLM has in several dialects.
OF_VLLM: Mapping[str, Unsupported] = {
    "kv_transfer_params": Unsupported(_empty, "KV is not transferred", "{}"),
    "ec_transfer_params": Unsupported(_empty, "encoder outputs are not transferred", "{}"),
    "watermarking": Unsupported(_one_of(False), "texts are not watermarked", "false"),
}
# Fields that routes without a beam search refuse.
OF_BEAMS: Mapping[str, Unsupported] = {
    "use_beam_search": Unsupported(_one_of(False), _BEAMS, "false"),
    "length_penalty": Unsupported(_one_of(1, 1.0), _BEAMS, "1.0"),
    "early_stopping": Unsupported(_one_of(False), _BEAMS, "false"),
}
UNSUPPORTED: Mapping[str, Unsupported] = {
    **SHAPES,
    "tools": Unsupported(_empty, _TOOLS, "[]"),
    "functions": Unsupported(_empty, _TOOLS, "[]"),
    "tool_choice": Unsupported(_no_function, _TOOLS, '"none", "auto"'),
    "function_call": Unsupported(_no_function, _TOOLS, '"none", "auto"'),
    "best_of": Unsupported(
        _one_of(1), "the best answer is not selected; use n, which returns all answers", "1"
    ),
    "suffix": Unsupported(_empty, "texts are filled in by /v1/completions", '""'),
    "prompt_embeds": Unsupported(
        _empty,
        "vectors instead of tokens come as a file of torch.save, which could run code, and the "
        "prefix cache knows prompts by their tokens; send a text or token ids",
        "[]",
    ),
    "modalities": Unsupported(lambda value: value in (None, [], ["text"]), _TEXT, '["text"]'),
    "audio": Unsupported(_empty, _TEXT, "null"),
    "media_io_kwargs": Unsupported(_empty, _TEXT, "{}"),
    "mm_processor_kwargs": Unsupported(_empty, _TEXT, "{}"),
    "web_search_options": Unsupported(
        lambda value: value is None, "this server does not search the web", "null"
    ),
    "prediction": Unsupported(
        _empty, "predicted outputs are for /v1/chat/completions; leave it out", "null"
    ),
    **OF_VLLM,
    "logits_processors": Unsupported(_empty, "functions cannot be sent over HTTP", "[]"),
    "extra_body": Unsupported(
        _empty, "an option of OpenAI's Python client; write its fields into the body itself", "{}"
    ),
}

# Forms of what vLLM's render routes return about media.
OF_MEDIA: Mapping[str, str] = dict.fromkeys(
    ("mm_payload", "return_mm_kwargs"), "prompts have no media"
)
IGNORED: Mapping[str, str] = {
    **OF_MEDIA,
    "user": "the API key identifies the user",
    "safety_identifier": "the API key identifies the user",
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is only one",
    "return_assistant_tokens_mask": "only conversations have an assistant",
    "prompt_cache_key": "prefixes are found by their content",
    "prompt_cache_retention": "prefixes are kept until their memory is needed",
    "session_id": "prefixes are found by their content",
    "parallel_tool_calls": "only answers to tools have calls",
    "include_reasoning": "only chats separate the reasoning",
    "verbosity": "chat templates do not use it",
    "guided_decoding_backend": "there is one grammar engine",
    "detokenize": "text is always returned",
    "flat_logprobs": "there is only one form over HTTP",
    "stream_interval": "tokens are sent as soon as they are generated",
    "routed_experts_prompt_start": "the experts that were chosen are not reported",
}


_OTHER_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "max_length": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "random_seed": "seed",
    "thinking_budget": "thinking_token_budget",
    "thinking_budget_tokens": "thinking_token_budget",
    "reasoning_budget": "thinking_token_budget",
}


def _nothing(request: Any) -> None:
    return None


def no_text(name: str) -> Callable[[Any], Any]:
    """Return the rule that leaves an empty text, or as many as there were prompts."""

    def left(request: Any) -> Any:
        given = getattr(request, name)
        is_many = isinstance(given, list) and bool(given)
        is_many = is_many and not any(isinstance(each, int) for each in given)
        if given is None:
            return None
        return [""] * len(given) if is_many else ""

    return left


def _last_message(request: Any) -> Any:
    """Return the last message alone, with its text if the answer begins with it."""
    if request.messages is None:
        return None
    last = request.messages[-1]
    is_echoed = getattr(request, "echo", False) and isinstance(last.content, str)
    return [type(last)(role=last.role, content=last.content if is_echoed else "")]


_OF_PROMPTS: Mapping[str, Callable[[Any], Any]] = {
    "prompt": no_text("prompt"),
    "tokens": lambda request: [],
    "messages": _last_message,
    "content": lambda request: None if request.content is None else "",
    **dict.fromkeys(("suffix", "documents", "chat_template", "chat_template_kwargs"), _nothing),
}


def _without_text(request: Any) -> Any:
    """Return that there is a prediction, without its text."""
    given = request.prediction
    return None if given is None else type(given)(content="")


# Fields that chats have and other routes do not.
_OF_CHATS = ("tools", "tool_choice", "functions", "function_call", "prediction")
_USED_IN_CHATS = (*("parallel_tool_calls", "include_reasoning", "return_assistant_tokens_mask"),)

RULES = FieldRules(
    open=frozenset(
        {
            *("documents", "chat_template_kwargs"),
            *("response_format", "structured_outputs", "guided_json", "json_schema"),
            "structural_tag",
        }
    ),
    with_lists=frozenset({"prompt"}),
    closed=frozenset({"response_format", "structured_outputs", "prediction"}),
    unsupported={name: rule for name, rule in UNSUPPORTED.items() if name != "suffix"},
    unsupported_words={word: Unsupported(_off, _SHAPE, "false") for word in _SHAPE_WORDS},
    ignored=IGNORED,
    of_prompts=_OF_PROMPTS,
    other_names=_OTHER_NAMES,
    other_routes={"messages": "/v1/chat/completions", "prompt": "/v1/completions"},
)
CHAT_RULES = replace(
    RULES,
    of_prompts={**_OF_PROMPTS, "prediction": _without_text},
    open=RULES.open | {"tools", "functions"},
    unsupported={name: rule for name, rule in UNSUPPORTED.items() if name not in _OF_CHATS},
    ignored={name: why for name, why in IGNORED.items() if name not in _USED_IN_CHATS},
    other_names={
        name: other for name, other in _OTHER_NAMES.items() if name != "max_completion_tokens"
    },
)
