"""The settings of the server, each with a default and a comment, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from octavo.core.config import MAX_WEIGHT
from octavo.transport.settings import ServerSettingsError, TransportSettings, name_of_key

MAX_NAME_CHARACTERS = 512  # of a model


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(TransportSettings):
    """The settings of the server; those of connections are in its base."""

    # Default: the model's own name. Responses contain the first of several names.
    served_model_name: str | tuple[str, ...] | None = None
    # Shares of the engine by key; its name is the first 16 hexadecimal digits of its SHA-256.
    key_weights: Mapping[str, float] = field(default_factory=dict)
    strict: bool = False  # refuse unknown fields
    enable_force_include_usage: bool = False  # usage in every chunk of every stream
    enable_per_request_metrics: bool = False  # times in answers, beside their usage
    return_tokens_as_token_ids: bool = False  # unless a request says otherwise
    tokens_only: bool = False  # answers are token ids, and no route makes or reads a text
    metrics_names: Literal["octavo", "vllm"] = "octavo"
    cache_scope: Literal["key", "global"] = "key"  # which requests share cached prefixes
    trust_request_chat_template: bool = False
    chat_template: str | None = None  # instead of the model's own
    # What templates read as content: a list of parts, a text, or what they show.
    chat_template_content_format: Literal["auto", "openai", "string"] = "auto"
    # Of templates, where a request does not set them itself.
    default_chat_template_kwargs: Mapping[str, Any] | None = None
    # Formats of answers, by vLLM's names. None: detected from the chat template; "none": none.
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_config: Mapping[str, Any] | None = None  # vLLM's: its format, and how it is ended
    # Cohere's route: False: reasoning in requests with tools is a plan; None: by its format.
    cohere_is_reasoning_model: bool | None = None
    tool_parser_plugin: Path | None = None  # a file that describes further formats
    log_prompts: bool = False  # at info, escaped
    enable_explain: bool = True
    middleware: tuple[str, ...] = ()  # "module:factory" of ASGI middlewares
    max_embed_len: int | None = None  # of a text that is embedded in pieces; None: as one alone
    max_output_tokens: int | None = None  # upper limit of max_tokens; None: the model's length
    max_request_seconds: float = 600.0  # in the queue and in the engine
    # Of several answers in one body, estimated before any work. One answer is always accepted.
    max_response_bytes: int = 256 << 20
    # limits of all requests together
    max_waiting_requests: int = 1000
    max_waiting_tokens: int = 4_000_000
    max_waiting_bytes: int = 64 << 20  # each takes two or three times that in memory
    max_running_sequences: int | None = None  # in the engine at once; None: its slots and a quarter
    status_seconds: float = 1.0  # longest wait for the first token before a stream starts
    ready_seconds: float = 2.0  # how old the engine's last step may be, and how long one may take
    drain_seconds: float = 30.0  # for running requests to finish after SIGTERM; 0: none
    # prompt workers
    prompt_workers: int = 1  # processes that render and tokenise
    prompt_worker_bytes: int = 2 << 30  # memory of one worker, beside its tokenizer
    template_seconds: float = 2.0  # for a conversation, with its tokens
    tokenize_seconds: float = 5.0  # for a text
    shape_seconds: float = 2.0  # for the grammar of a shape
    num_explained: int = 512  # recent requests that can be explained
    # durable requests
    journal: Path | None = None  # the file; None: an answer ends with its connection
    journal_seconds: float = 600.0  # for which an answer is kept after its end
    journal_bytes: int = 64 << 20  # of all requests that are kept, in memory; twice in the file
    # batches
    batch_dir: Path | None = None  # the directory of their files; None: there are none
    batch_bytes: int = 10 << 30  # of all files
    batch_file_bytes: int = 200 << 20  # of a file that a client sends
    batch_lines: int = 50_000  # requests of a batch
    batch_keep_seconds: float = 30 * 86_400.0  # for which files and results are kept

    # responses that are kept
    responses_store: Path | None = None  # the file; None: in memory
    responses_seconds: float = 86_400.0  # after their beginning
    responses_bytes: int = 64 << 20  # of all of them

    @property
    def body_reader(self) -> str:
        """The function that returns the reader of large bodies, for workers."""
        return "octavo.server.application:body_reader"

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that the model is served under; empty for its own name."""
        names = self.served_model_name
        if names is None:
            return ()
        return tuple(dict.fromkeys((names,) if isinstance(names, str) else names))

    def __post_init__(self) -> None:
        # Not super(): slots make another class of this one.
        TransportSettings.__post_init__(self)
        for name in self.served_names:
            if not 0 < len(name) <= MAX_NAME_CHARACTERS:
                raise ServerSettingsError(
                    f"served_model_name={name[:64]!r} must have 1 to {MAX_NAME_CHARACTERS} "
                    "characters, so that requests can contain it"
                )
        self._check_weights()
        if self.tokens_only and self.grpc_port is not None:
            raise ServerSettingsError(
                "tokens_only and grpc_port exclude each other: answers over gRPC have a text"
            )

    def _check_weights(self) -> None:
        names = [name_of_key(key) for key in self.api_keys]
        for name, weight in self.key_weights.items():
            if name not in names:
                raise ServerSettingsError(
                    f"key_weights has {name!r}, and no API key has this name; their names are "
                    f"{', '.join(names) or 'none, since there are no keys'}"
                )
            if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
                raise ServerSettingsError(
                    f"key_weights: {name}={weight} must be from {1 / MAX_WEIGHT} to {MAX_WEIGHT}"
                )
