"""The request fields of vLLM 0.32, by route, and what this server does with each.

`python -m tests.tidy.vllm_fields DIRECTORY` compares the names with an installed
vLLM, whose package is in DIRECTORY. It prints what differs, and fails if anything does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from octavo.server.routes import ROUTES
from octavo.serving.schema.rules import rules_of

_ALL = ("model", "cache_salt", "priority", "request_id")
_TRANSFER = ("kv_transfer_params", "ec_transfer_params")
_MEDIA = ("mm_payload", "return_mm_kwargs")
_SAMPLED = (
    *("frequency_penalty", "logit_bias", "presence_penalty", "repetition_penalty", "seed", "stop"),
    *("temperature", "top_p", "top_k", "min_p", "user", "include_stop_str_in_output"),
    *("structured_outputs", "watermarking"),
)
_OPENAI = (
    *(*_ALL, *_SAMPLED, "logprobs", "max_tokens", "n", "response_format", "use_beam_search"),
    *("length_penalty", "logprob_token_ids", "echo", "return_tokens_as_token_ids"),
    "return_token_ids",
)
_OF_BOTH = (
    *(*_OPENAI, *_TRANSFER, *_MEDIA, "vllm_xargs", "stream", "stream_options", "session_id"),
    *("stop_token_ids", "ignore_eos", "min_tokens", "skip_special_tokens", "prompt_logprobs"),
    *("spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side"),
    *("allowed_token_ids", "bad_words", "add_special_tokens", "return_token_offsets"),
    *("thinking_token_budget", "repetition_detection", "stream_interval"),
    "routed_experts_prompt_start",
)
_TEMPLATE = (
    *("messages", "add_generation_prompt", "continue_final_message", "chat_template"),
    *("chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs"),
)
_CHAT = (
    *(*_TEMPLATE, "top_logprobs", "max_completion_tokens", "tool_choice", "include_reasoning"),
)
_POOLED = (
    *(*_ALL, "truncate_prompt_tokens", "truncation_side", "use_activation", "user", "padding"),
    "mm_processor_kwargs",
)
_INPUT = (*_POOLED, *_TEMPLATE, "input", "add_special_tokens")
_VECTORS = ("dimensions", "encoding_format", "embed_dtype", "endianness")
_PAIRS = (
    *(*_POOLED, "chat_template_kwargs", "instruction", "max_tokens_per_doc"),
    *("max_tokens_per_query", "documents"),
)
_MESSAGES = (
    *("messages", "model", "output_config", "system", "thinking", "tool_choice", "tools"),
    "chat_template_kwargs",
)
FIELDS: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": (
        *(*_OF_BOTH, *_CHAT, "tools", "parallel_tool_calls", "reasoning_effort", "documents"),
        "return_prompt_text",
    ),
    "/v1/chat/completions/batch": (
        *(*_OPENAI, *_CHAT, "best_of", "early_stopping", "guided_decoding_backend"),
    ),
    "/v1/completions": (*_OF_BOTH, "prompt", "prompt_embeds", "suffix"),
    "/v1/responses": (
        *(*_ALL, *_SAMPLED, *_TRANSFER, *_MEDIA, "vllm_xargs", "stream", "session_id"),
        *("background", "chat_template_kwargs", "enable_response_messages", "ignore_eos"),
        *("include", "include_reasoning", "input", "instructions", "max_output_tokens"),
        *("max_tool_calls", "media_io_kwargs", "metadata", "mm_processor_kwargs"),
        *("parallel_tool_calls", "previous_input_messages", "previous_response_id", "prompt"),
        *("prompt_cache_key", "reasoning", "service_tier", "skip_special_tokens"),
        *("stop_token_ids", "store", "text", "tool_choice", "tools", "top_logprobs"),
        "truncation",
    ),
    "/v1/messages": (
        *(*_MESSAGES, *_TRANSFER, *_MEDIA, "vllm_xargs", "watermarking", "cache_salt"),
        *("max_tokens", "metadata", "stop_sequences", "stream", "temperature", "top_k", "top_p"),
    ),
    "/v1/messages/count_tokens": _MESSAGES,
    "/v1/embeddings": (*_INPUT, *_VECTORS),
    "/pooling": (*_INPUT, *_VECTORS, "task", "data"),
    "/classify": _INPUT,
    "/score": (*_PAIRS, "text_1", "text_2", "data_1", "data_2", "queries", "items"),
    "/rerank": (*_PAIRS, "query", "top_n"),
    "/inference/v1/generate": (
        *(*_ALL, *_TRANSFER, "content_parts", "features", "output_mode", "parse_context"),
        *(
            "reasoning_ended",
            "reasoning_parser_kwargs",
            "return_token_ids",
            "sampling_params",
            "stream",
        ),
        *("stream_options", "token_ids", "token_offsets"),
    ),
    "/tokenize": (
        *(*_TEMPLATE, "add_special_tokens", "model", "prompt", "return_token_strs", "tools"),
    ),
    "/detokenize": ("model", "tokens"),
}
# The classes of vLLM that a route's body may have.
CLASSES: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("ChatCompletionRequest",),
    "/v1/chat/completions/batch": ("BatchChatCompletionRequest",),
    "/v1/completions": ("CompletionRequest",),
    "/v1/responses": ("ResponsesRequest",),
    "/v1/messages": ("AnthropicMessagesRequest",),
    "/v1/messages/count_tokens": ("AnthropicCountTokensRequest",),
    "/v1/embeddings": ("EmbeddingCompletionRequest", "EmbeddingChatRequest"),
    "/pooling": ("PoolingCompletionRequest", "PoolingChatRequest", "IOProcessorRequest"),
    "/classify": ("ClassificationCompletionRequest", "ClassificationChatRequest"),
    "/score": (
        *("ScoreDataRequest", "ScoreQueriesDocumentsRequest", "ScoreQueriesItemsRequest"),
        "ScoreTextRequest",
    ),
    "/rerank": ("RerankRequest",),
    "/inference/v1/generate": ("GenerateRequest",),
    "/tokenize": ("TokenizeCompletionRequest", "TokenizeChatRequest"),
    "/detokenize": ("DetokenizeRequest",),
}
WORKS = "works"
# Fields that a struct inherits, and its route refuses.
_NEVER = {("BatchChatRequest", "echo"): "`false`: an answer has no prompt here"}


def verdict(kind: type[Struct], name: str) -> str:
    """Return what becomes of a field; raise LookupError for one that no table has."""
    rules = rules_of(kind)
    if name in kind.__struct_fields__:
        harmless = _NEVER.get((kind.__name__, name))
        return WORKS if harmless is None else f"refused, except for {harmless}"
    if name in rules.ignored:
        return f"no effect: {rules.ignored[name]}"
    if name in rules.unsupported:
        rule = rules.unsupported[name]
        return f"refused, except for null and `{rule.harmless}`: {rule.refusal}"
    raise LookupError(f"{kind.__name__} knows nothing of vLLM's field {name}")


def table() -> Iterator[str]:
    """Yield the lines of a table of all fields: those that work, and what becomes of others."""
    kinds = {route.path: route.request for route in ROUTES if route.request is not None}
    yield "| field | routes | what becomes of it |"
    yield "| --- | --- | --- |"
    for name in sorted({name for names in FIELDS.values() for name in names}):
        found: dict[str, list[str]] = {}
        for path, names in FIELDS.items():
            if name in names:
                found.setdefault(verdict(kinds[path], name), []).append(f"`{path}`")
        for answer, paths in found.items():
            yield f"| `{name}` | {', '.join(paths)} | {answer} |"


def fields_of(package: Path) -> dict[str, set[str]]:
    """Return the fields that the routes have in an installed vLLM, read from its sources."""
    bases: dict[str, list[str]] = {}
    own: dict[str, set[str]] = {}
    for file in (package / "entrypoints").rglob("protocol.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).partition("[")[0] for base in node.bases]
                bases[node.name] = [name.rpartition(".")[2] for name in names]
                own[node.name] = {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                    if not each.target.id.startswith("_") and each.target.id != "field_names"
                }

    def inherited(name: str) -> set[str]:
        return own.get(name, set()).union(*map(inherited, bases.get(name, ())))

    return {path: set().union(*map(inherited, names)) for path, names in CLASSES.items()}


def main() -> int:
    """Print the fields that the table lacks, or that vLLM has no more."""
    differ = 0
    for path, names in fields_of(Path(sys.argv[1])).items():
        for name in sorted(names ^ set(FIELDS[path])):
            differ += 1
            print(f"{path}: {name} is only in {'vLLM' if name in names else 'the table'}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
