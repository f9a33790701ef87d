"""The settings of the server, each declared once, checked when they are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from octavo.core.config import MAX_WEIGHT
from octavo.options.declare import option
from octavo.options.named_adapters import MAX_NAME_CHARACTERS, NamedAdapter, read_adapter
from octavo.options.transport import ServerSettingsError, TransportSettings, name_of_key
from octavo.options.values import json_object, traced_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(TransportSettings):
    """The settings of the server; those of connections are in its base."""

    served_model_name: str | tuple[str, ...] | None = option(
        None,
        "the names of the model; requests may use any of them, and responses have the first; by "
        "default the name on this command line",
        "NAME",
        group="dialect",
        parts={"nargs": "+", "action": "extend"},
    )
    # By the names of keys: the first 16 hexadecimal digits of their SHA-256.
    key_weights: Mapping[str, float] = field(default_factory=dict)
    trust_request_chat_template: bool = option(
        False, "render chat templates that requests contain", group="access"
    )
    cache_scope: Literal["key", "global"] = option(
        "key",
        "which requests share prefixes: those with the same key (key), or all (global)",
        "WHO",
        group="access",
    )
    log_prompts: bool = option(False, "write prompts to the log, escaped", group="access")
    middleware: tuple[str, ...] = option(
        (),
        "an ASGI middleware, made by factory(application); give it again for more, the last of "
        "which is the outermost",
        "MODULE:FACTORY",
        group="access",
        parts={"action": "append"},
    )
    strict: bool = option(False, "refuse unknown fields", group="dialect")
    enable_force_include_usage: bool = option(
        False,
        "send the usage in every chunk of every stream, and in a last one of its own",
        group="dialect",
    )
    enable_per_request_metrics: bool = option(
        False,
        "add the times of a request with one answer to it, in a stream beside the usage at its end",
        group="dialect",
    )
    return_tokens_as_token_ids: bool = option(
        False,
        "name tokens as token_id:N in log-probabilities, unless a request says otherwise",
        group="dialect",
    )
    any_model_name: bool = option(
        False,
        "answer requests that name a model or an adapter that there is not, as llama-server does",
        group="dialect",
    )
    tokens_only: bool = option(
        False,
        "answer with token ids alone: /inference/v1/generate is the only route that generates",
        group="dialect",
    )
    metrics_names: Literal["octavo", "vllm", "llamacpp"] = option(
        "octavo",
        "octavo, vllm for dashboards that expect its names, or llamacpp, which adds llama-server's",
        "NAMES",
        group="dialect",
    )
    list_slots: bool = option(
        True, "answer GET /slots, of llama-server", group="dialect", flags=("--slots",)
    )
    enable_explain: bool = option(
        True, "record where the time of requests went", group="dialect", flags=("--explain",)
    )
    console: bool = option(
        True, "show browsers a console at /, of the model and of the server", group="dialect"
    )
    chat_template: str | None = option(
        None,
        "a Jinja template instead of the model's: a file, or the template itself",
        "TEMPLATE",
        group="dialect",
    )
    chat_template_content_format: Literal["auto", "openai", "string"] = option(
        "auto",
        "what chat templates read as a message's content: openai (a list of parts), string, or "
        "what they show",
        "FORMAT",
        group="dialect",
    )
    default_chat_template_kwargs: Mapping[str, Any] | None = option(
        None,
        "variables of chat templates, where a request does not set them: a JSON object such as "
        "'{\"enable_thinking\": false}'",
        "JSON",
        group="dialect",
        read=json_object,
    )
    chat_template_dates: bool = option(
        False,
        "give chat templates the date as llama-server does: date_string, such as 26 Jul 2024, and "
        "datetime, such as Jul 26 2024; otherwise only a template that asks for it has it",
        group="dialect",
    )
    tool_call_parser: str | None = option(
        None,
        "the format of the model's tool calls, instead of the one that its chat template shows",
        "NAME",
        group="dialect",
    )
    reasoning_parser: str | None = option(
        None,
        "the format of its reasoning, likewise; none: it is not separated",
        "NAME",
        group="dialect",
    )
    reasoning_config: Mapping[str, Any] | None = option(
        None,
        "how reasoning ends when a request's budget of it is spent: a JSON object with the keys "
        "reasoning_parser, reasoning_start_str and reasoning_end_str, whose text ends with the "
        "mark of the format",
        "JSON",
        group="dialect",
        read=json_object,
    )
    cohere_is_reasoning_model: bool | None = option(
        None,
        "on /v2/chat, return reasoning as a block of thinking always, or in requests with tools as "
        "the plan of the calls (default: as the format of the reasoning is)",
        group="dialect",
    )
    tool_parser_plugin: Path | None = option(
        None,
        "a description of further formats, for the parsers of calls and of reasoning",
        "FILE",
        group="dialect",
    )
    max_output_tokens: int | None = option(
        None, "the most tokens of an answer", "TOKENS", group="limits"
    )
    max_embed_len: int | None = option(
        None,
        "the most tokens of a text to embed; one longer than the model reads is embedded in pieces",
        "TOKENS",
        group="limits",
    )
    max_request_seconds: float = option(
        600.0,
        "the longest time of a request, in the queue and in the engine",
        "SECONDS",
        group="limits",
    )
    # One answer is always accepted; of several, the size is estimated before any work.
    max_response_bytes: int = option(
        256 << 20,
        "the largest body with several answers, estimated from their lengths; streams have none",
        "SIZE",
        group="limits",
    )
    max_waiting_requests: int = option(
        1000, "the most requests in the queue; others get a 429", "COUNT", group="limits"
    )
    max_waiting_tokens: int = option(
        4_000_000,
        "the most prompt tokens in the queue",
        "TOKENS",
        group="limits",
        aliases=("--max-num-queued-tokens",),
    )
    max_waiting_bytes: int = option(  # each takes two or three times that in memory
        64 << 20, "the most bytes in the queue", "SIZE", group="limits"
    )
    max_running_sequences: int | None = option(
        None,
        "the most sequences in the engine at once (default: its slots and a quarter)",
        "COUNT",
        group="limits",
    )
    num_explained: int = option(
        512, "recent requests that /explain knows", "COUNT", group="limits", least=0
    )
    max_live_listeners: int = option(
        16,
        "the most listeners of /v1/live, as `octavo top` and the console are; 0: there is none",
        "COUNT",
        group="limits",
        least=0,
    )
    ready_seconds: float = option(
        2.0,
        "how old the engine's last step may be, and how long a test step may take, to be ready",
        "SECONDS",
        group="times",
    )
    sleep_idle_seconds: float | None = option(
        None,
        "time without a request after which the engine ends; the next request starts it again "
        "(default: never)",
        "SECONDS",
        group="times",
    )
    status_seconds: float = option(
        1.0, "longest wait for the first token before a stream starts", "SECONDS", group="times"
    )
    template_seconds: float = option(
        2.0, "for a chat template to be rendered, and tokenised", "SECONDS", group="times"
    )
    tokenize_seconds: float = option(5.0, "for a text to be tokenised", "SECONDS", group="times")
    shape_seconds: float = option(
        2.0, "for the grammar of a response's shape to be compiled", "SECONDS", group="times"
    )
    prompt_workers: int = option(
        1,
        "processes that render and tokenise prompts",
        "COUNT",
        group="times",
        aliases=("--renderer-num-workers",),
    )
    prompt_worker_bytes: int = option(
        2 << 30,
        "the most memory of such a process, beside the model's tokenizer",
        "SIZE",
        group="times",
    )
    journal: Path | None = option(
        None,
        "a file from which streams continue after the end of their connection or of the server",
        "PATH",
        group="durable requests",
    )
    journal_seconds: float = option(
        600.0,
        "time for which an answer is kept after its end",
        "SECONDS",
        group="durable requests",
    )
    # In memory; in the file they take twice that.
    journal_bytes: int = option(
        64 << 20, "the most bytes of requests that are kept", "SIZE", group="durable requests"
    )
    responses_store: Path | None = option(
        None,
        "a file in which responses are kept after the server's end",
        "PATH",
        group="kept responses",
    )
    responses_seconds: float = option(
        86_400.0, "time for which a response is kept", "SECONDS", group="kept responses"
    )
    responses_bytes: int = option(
        64 << 20, "the most bytes of responses that are kept", "SIZE", group="kept responses"
    )
    batch_dir: Path | None = option(
        None,
        "a directory for files and batches, which continue after a kill",
        "PATH",
        group="batches",
    )
    batch_bytes: int = option(10 << 30, "the most bytes of all files", "SIZE", group="batches")
    batch_file_bytes: int = option(
        200 << 20, "the largest file of requests", "SIZE", group="batches"
    )
    batch_lines: int = option(50_000, "the most requests of a batch", "COUNT", group="batches")
    batch_keep_seconds: float = option(
        30 * 86_400.0,
        "time for which files and results are kept",
        "SECONDS",
        group="batches",
    )

    lora_modules: tuple[NamedAdapter, ...] = option(
        (),
        "adapters (LoRA) that requests may name as their model: NAME=PATH, or JSON with the keys "
        "name, path and base_model_name",
        "ADAPTER",
        group="adapters",
        read=read_adapter,
        parts={"nargs": "+", "action": "extend"},
    )
    lora_directory: Path | None = option(
        None,
        "a directory whose sub-directories and GGUF files are adapters, each under its own name; "
        "new and changed ones are taken without a restart",
        "DIR",
        group="adapters",
    )
    lora_directory_seconds: float = option(
        2.0, "time between two looks at that directory", "SECONDS", group="adapters"
    )
    lora_resolver: str | None = option(
        None,
        "a function of your own that finds the adapter of an unknown name when it is first asked "
        "for; it is trusted, and found in PYTHONPATH",
        "MODULE:FUNCTION",
        group="adapters",
    )
    lora_resolver_seconds: float = option(
        60.0, "for that function to find one", "SECONDS", group="adapters"
    )
    max_lora_names: int = option(
        10_000, "the most adapters that have a name at once", "COUNT", group="adapters"
    )
    allow_runtime_lora_updating: bool = option(
        False,
        "let clients with a key add and remove adapters that lie on this machine; operators always "
        "may, on the admin socket (also VLLM_ALLOW_RUNTIME_LORA_UPDATING)",
        group="adapters",
    )

    otlp_traces_endpoint: str | None = option(
        None,
        "send a trace of each request to a collector of OpenTelemetry (octavo[otel]), as in "
        "http://localhost:4318/v1/traces or grpc://localhost:4317",
        "URL",
        group="traces",
    )
    collect_detailed_traces: tuple[str, ...] = option(
        (),
        "what traces show in detail: model, worker or all, each of which adds a span for each "
        "chunk of a prompt",
        "PARTS",
        group="traces",
        read=traced_parts,
    )

    @property
    def names_adapters(self) -> bool:
        """True if a setting says where adapters are, so that they are wanted."""
        return bool(self.lora_modules or self.lora_directory or self.lora_resolver)

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
        self._check_adapters()
        if self.collect_detailed_traces and self.otlp_traces_endpoint is None:
            raise ServerSettingsError(
                "collect_detailed_traces has no effect without otlp_traces_endpoint, to which "
                "traces are sent; add it"
            )
        self._check_handover()
        if self.tokens_only and self.grpc_port is not None:
            raise ServerSettingsError(
                "tokens_only and grpc_port exclude each other: answers over gRPC have a text"
            )

    def _check_handover(self) -> None:
        names = ("grpc_port", "journal", "responses_store", "batch_dir")
        beside = next((name for name in names if getattr(self, name) is not None), None)
        if self.handover is not None and beside is not None:
            raise ServerSettingsError(
                f"handover and {beside} exclude each other: for a while two servers run, and it "
                "belongs to one; let systemd pass the socket instead (LISTEN_FDS)"
            )

    def _check_adapters(self) -> None:
        names = [*self.served_names, *(each.name for each in self.lora_modules)]
        for name, count in Counter(names).items():
            if count > 1:
                raise ServerSettingsError(
                    f"lora_modules: {name[:64]!r} is the name of two models or adapters, and a "
                    "request selects one by its name: rename one of them"
                )
        if self.allow_runtime_lora_updating and not self.api_keys:
            raise ServerSettingsError(
                "allow_runtime_lora_updating lets clients load files of this machine, so they need "
                "an API key: give one, or use --admin-socket instead"
            )
        defaults = [each.name for each in self.lora_modules if each.is_default]
        if len(defaults) > 1:
            raise ServerSettingsError(
                f"the adapters {' and '.join(map(repr, defaults[:2]))} would both apply to each "
                "request, which has one adapter: name them by --lora-modules instead, and let "
                "requests choose by their model"
            )
        if len(names) > self.max_lora_names:
            raise ServerSettingsError(
                f"lora_modules has {len(names)} names, of at most "
                f"max_lora_names={self.max_lora_names}: raise that"
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
