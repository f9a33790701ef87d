"""Fields that clients of other servers send and that this one has no use for, or not yet.

Most clients send some of them always, with values that ask for nothing. Those are taken. What asks
for something in earnest is refused by name, for a client that believes it was heeded is worse off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.server.http.errors import not_yet


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Which values of a field ask for nothing, and what is said of the others."""

    is_harmless: Callable[[Any], bool]
    refusal: str
    harmless: str  # the same, for people


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: (
        value is None or any(type(value) is type(each) and value == each for each in values)
    )


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


def _text_format(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type") == "text")


def _no_function(value: Any) -> bool:
    return value is None or value in ("none", "auto")


_TOOLS = "tools are not supported yet; leave it out, or describe the tools in the messages"
_STRUCTURED = "structured output is not supported yet; leave it out"
_BEAMS = "beam search is not served over HTTP; use octavo.LLM.beam_search"
_TEXT = "this server takes and gives text alone; leave it out"

UNSUPPORTED: Mapping[str, Unsupported] = {
    "tools": Unsupported(_empty, _TOOLS, "[]"),
    "functions": Unsupported(_empty, _TOOLS, "[]"),
    "tool_choice": Unsupported(_no_function, _TOOLS, '"none", "auto"'),
    "function_call": Unsupported(_no_function, _TOOLS, '"none", "auto"'),
    "response_format": Unsupported(_text_format, _STRUCTURED, '{"type": "text"}'),
    "structured_outputs": Unsupported(_empty, _STRUCTURED, "{}"),
    "guided_json": Unsupported(_empty, _STRUCTURED, '""'),
    "guided_regex": Unsupported(_empty, _STRUCTURED, '""'),
    "guided_choice": Unsupported(_empty, _STRUCTURED, "[]"),
    "guided_grammar": Unsupported(_empty, _STRUCTURED, '""'),
    "best_of": Unsupported(
        _one_of(1), "answers are not chosen among; use n, which gives them all", "1"
    ),
    "suffix": Unsupported(_empty, "text cannot be filled in before a suffix; leave it out", '""'),
    "prompt_embeds": Unsupported(_empty, "prompts are texts or token ids", "[]"),
    "use_beam_search": Unsupported(_one_of(False), _BEAMS, "false"),
    "length_penalty": Unsupported(_one_of(1, 1.0), _BEAMS, "1.0"),
    "early_stopping": Unsupported(_one_of(False), _BEAMS, "false"),
    "modalities": Unsupported(lambda value: value in (None, [], ["text"]), _TEXT, '["text"]'),
    "audio": Unsupported(_empty, _TEXT, "null"),
    "media_io_kwargs": Unsupported(_empty, _TEXT, "{}"),
    "mm_processor_kwargs": Unsupported(_empty, _TEXT, "{}"),
    "web_search_options": Unsupported(
        lambda value: value is None, "this server fetches nothing", "null"
    ),
    "prediction": Unsupported(_empty, "predicted outputs are not supported yet", "null"),
    "thinking_token_budget": Unsupported(
        _one_of(-1), "a budget for reasoning is not supported yet; use max_tokens", "-1"
    ),
    "repetition_detection": Unsupported(_empty, "repetitions are not looked for", "null"),
    "logprob_token_ids": Unsupported(_empty, "use logprobs, which tells the likeliest", "[]"),
    "vllm_xargs": Unsupported(_empty, "this server has no extensions to pass it to", "{}"),
    "kv_transfer_params": Unsupported(_empty, "KV is not transferred", "{}"),
    "ec_transfer_params": Unsupported(_empty, "encoder outputs are not transferred", "{}"),
    "logits_processors": Unsupported(_empty, "functions are not taken over HTTP", "[]"),
}

# Taken whatever they say: they ask for nothing that would change an answer.
IGNORED: Mapping[str, str] = {
    "user": "who asks is told by the key",
    "safety_identifier": "who asks is told by the key",
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one",
    "prompt_cache_key": "prefixes are found by their content",
    "prompt_cache_retention": "prefixes are kept as long as there is room",
    "session_id": "prefixes are found by their content",
    "request_id": "the x-request-id header names a request",
    "parallel_tool_calls": "there are no tools yet",
    "include_reasoning": "reasoning is a part of the text",
    "verbosity": "the model's template does not know it",
    "detokenize": "text is always given",
    "flat_logprobs": "the form over HTTP is one",
    "stream_interval": "tokens are sent as they come",
}


def check_unsupported(given: Mapping[str, Any]) -> None:
    """Raise for the first field that asks for what is not there."""
    for name, value in given.items():
        rule = UNSUPPORTED.get(name)
        if rule is not None and not rule.is_harmless(value):
            raise not_yet(name, rule.refusal)


def ignored_inside(given: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What asks for something inside of what asks for nothing: field, name, and who is known."""
    text_format = given.get("response_format")
    if isinstance(text_format, dict):
        for name, value in text_format.items():
            if name != "type" and value is not None:
                yield "response_format", name, ("type",)
