"""The fields of vLLM's chat and completion requests, and what this server does with each."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.server.openai.schema.chat import ChatRequest
from octavo.server.openai.schema.completion import CompletionRequest
from octavo.server.openai.schema.sampling import CommonRequest
from octavo.server.schema.rules import rules_of

_BOTH = (
    *("model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n"),
    *("presence_penalty", "response_format", "seed", "stop", "stream", "stream_options"),
    *("temperature", "top_p", "user", "use_beam_search", "length_penalty", "top_k", "min_p"),
    *("repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    *("min_tokens", "skip_special_tokens", "spaces_between_special_tokens"),
    *("truncate_prompt_tokens", "truncation_side", "prompt_logprobs", "logprob_token_ids"),
    *("allowed_token_ids", "bad_words", "echo", "add_special_tokens", "structured_outputs"),
    *("priority", "request_id", "session_id", "return_tokens_as_token_ids", "return_token_ids"),
    *("return_prompt_text", "return_token_offsets", "cache_salt", "kv_transfer_params"),
    *("ec_transfer_params", "vllm_xargs", "thinking_token_budget", "repetition_detection"),
    "stream_interval",
)
CHAT = (
    *("messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice"),
    *("reasoning_effort", "parallel_tool_calls", "add_generation_prompt"),
    *("continue_final_message", "documents", "chat_template", "chat_template_kwargs"),
    *("media_io_kwargs", "mm_processor_kwargs", "include_reasoning"),
    *("return_assistant_tokens_mask", *_BOTH),
)
COMPLETION = ("prompt", "prompt_embeds", "suffix", *_BOTH)
WORKS = "works"


def verdict(kind: type[CommonRequest], name: str) -> str:
    """Return what becomes of a field; raise LookupError for one that no table has."""
    rules = rules_of(kind)
    if name in kind.__struct_fields__:
        return WORKS
    if name in rules.ignored:
        return f"no effect: {rules.ignored[name]}"
    if name in rules.unsupported:
        rule = rules.unsupported[name]
        return f"refused, except for null and `{rule.harmless}`: {rule.refusal}"
    raise LookupError(f"{kind.__name__} knows nothing of vLLM's field {name}")


def table() -> Iterator[str]:
    """Yield the lines of a table of all fields."""
    yield "| field | in chats | in completions |"
    yield "| --- | --- | --- |"
    for name in sorted({*CHAT, *COMPLETION}):
        chat = verdict(ChatRequest, name) if name in CHAT else ""
        completion = verdict(CompletionRequest, name) if name in COMPLETION else ""
        same = chat == completion and chat != WORKS
        yield f"| `{name}` | {chat} | {'the same' if same else completion} |"
