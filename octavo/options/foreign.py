"""vLLM's options that Octavo does not have as settings of its own, each with the reason.

An option is ignored only if no value of it can change an answer, the safety of the server, or what
its user counts on. One that can is accepted with the values that are the case here, and refused
with others; one that asks for what there is not is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

from octavo.options.backends import devices

_TLS = "the server would speak without TLS; give --ssl-certfile and --ssl-keyfile, or unset it"
_KEY_FILE = "the server would be open; give --api-key-file, or unset it"
_HUB = "models come from the Hugging Face hub"
_ADDRESS = "give --host and --port"

# What a variable would protect, and what to do instead. One that is not needed any more because
# the flag is given has no effect.
REFUSED = {
    "LLAMA_ARG_SSL_CERT_FILE": ("ssl_certfile", _TLS),
    "LLAMA_ARG_SSL_KEY_FILE": ("ssl_certfile", _TLS),
    "LLAMA_ARG_API_KEY_FILE": ("api_keys", _KEY_FILE),
}
# What to use instead, or why nothing is needed.
WITHOUT_EFFECT = {
    "VLLM_CPU_KVCACHE_SPACE": "give --kv-cache-memory",
    "VLLM_CPU_OMP_THREADS_BIND": "give --num-threads",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "give --num-threads",
    "VLLM_USE_MODELSCOPE": _HUB,
    "VLLM_LOGGING_LEVEL": "give --log-level",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "give --idle-seconds",
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "give --max-body-bytes",
    "VLLM_CACHE_ROOT": "set OCTAVO_CACHE",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "a sequence has as many positions as the model was made for",
    "VLLM_SERVER_DEV_MODE": "give --admin-socket, whose routes are for operators",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "give --lora-directory",
    "VLLM_PLUGINS": "give --lora-resolver for adapters, and --logits-processors",
    "VLLM_BATCH_INVARIANT": "a request's tokens never depend on the batch",
    "VLLM_LOGGING_CONFIG_PATH": "give --log-level",
    "VLLM_HOST_IP": "give --master-addr",
    "VLLM_RAY_BUNDLE_INDICES": "give --ray-placement and --engine-cpus",
    "SGLANG_USE_MODELSCOPE": _HUB,
    "OLLAMA_HOST": _ADDRESS,
    "OLLAMA_ORIGINS": "give --allowed-origins",
    "OLLAMA_MODELS": "name the model's file or directory",
    "OLLAMA_CONTEXT_LENGTH": "give --max-model-len",
    "OLLAMA_NUM_PARALLEL": "give --max-num-seqs",
    "OLLAMA_MAX_QUEUE": "give --max-waiting-requests",
    "OLLAMA_KV_CACHE_TYPE": "give --kv-cache-dtype int8 for q8_0, or int4 for q4_0",
    "OLLAMA_KEEP_ALIVE": "the model stays loaded",
    "TRANSFORMERS_CACHE": "set HF_HUB_CACHE",
    "MODELSCOPE_CACHE": _HUB,
}
# Every variable of llama-server's is a flag of its own.
_PREFIX = "LLAMA_ARG_"
DEVICES = f"the backends compute on {', '.join(devices())} alone"
ONE_DEVICE = "a model is on one device as a whole, which --device names"
_GPU_MEMORY = "the model is in the CPU's memory already"
_GRAPHS = "a graph is captured when a number of sequences first needs it"
_GRAPH_SIZES = (
    "graphs are for multiples of the rows that a product computes at once (64 on a card), up to "
    "max_num_seqs, and are captured when they are needed"
)
_KERNELS = "the backend chooses its kernels"
_RANKS = (
    "the ranks of an engine are processes of one machine that divide each matrix by its outputs, "
    "or the experts, or of several machines that add up; its stages divide the layers, on several "
    "machines too, with nnodes or distributed_executor_backend=ray, and nothing else is divided"
)
_TEXT_ALONE = "models read text alone"
_ONE_GRAMMAR_ENGINE = "there is one grammar engine"
_TASKS = "a model serves what its files make of it, generating and vectors side by side"
_TRANSFER = "KV stays in the engine that computed it"
_STATES = "models with states are not supported yet"
_NO_CODE = "no code of a model is ever run"
_MAPPED = "weights are mapped from their files"
_CORS = "pages of allowed origins may use each route; allow fewer origins instead"
_BATCH = "max_num_batched_tokens is the limit of a step"

# Options that change nothing here, whatever their value.
INERT: Mapping[str, str] = {
    "trust_remote_code": _NO_CODE,
    "code_revision": _NO_CODE,
    "swap_space": "what is preempted is computed again",
    "max_seq_len_to_capture": _GRAPHS,
    "cudagraph_metrics": _GRAPHS,
    **dict.fromkeys(("jit_monitor_mode", "jit_monitor_verbose"), "nothing is compiled"),
    **dict.fromkeys(("compilation_config", "optimization_level"), "models are not compiled"),
    "performance_mode": "there is one",
    "specialize_active_lora": "a step computes the adapters that it has, and no more",
    **dict.fromkeys(
        (
            *("attention_backend", "attention_config", "kernel_config", "ir_op_priority"),
            *("moe_backend", "linear_backend", "mamba_backend", "mamba_ssu_algorithm"),
            *("gdn_prefill_backend", "kda_prefill_backend", "kda_decode_backend", "monokernel"),
            *("sparse_indexer_topk_backend", "enable_flashinfer_autotune"),
            *("enable_flash_late_interaction", "disable_cascade_attn"),
        ),
        _KERNELS,
    ),
    **dict.fromkeys(
        (
            "disable_custom_all_reduce",
            *("distributed_timeout_seconds", "cpu_distributed_timeout_seconds"),
            *("disable_nccl_for_dp_synchronization", "enable_nccl_comm_suspend"),
            *("enable_shm_tensor_arena", "dp_sync_interval", "aggregate_engine_logging"),
        ),
        "ranks share memory, and no sum crosses them",
    ),
    **dict.fromkeys(
        (
            *("max_parallel_loading_workers", "safetensors_load_strategy", "use_tqdm_on_load"),
            *("safetensors_prefetch_num_threads", "safetensors_prefetch_block_size"),
        ),
        _MAPPED,
    ),
    "pt_load_map_location": "pickled weights are never loaded",
    **dict.fromkeys(
        (
            *("language_model_only", "limit_mm_per_prompt", "skip_mm_profiling"),
            *("interleave_mm_strings", "disable_chunked_mm_input", "mm_processor_cache_gb"),
            *("mm_processor_cache_type", "mm_hasher_algorithm", "mm_encoder_tp_mode"),
            *("mm_shm_cache_max_object_size_mb", "mm_encoder_attn_backend", "mm_tensor_ipc"),
            *("mm_encoder_attn_dtype", "mm_processor_device", "mm_ipc_gpu_memory_gb"),
            *("mm_device_do_normalize", "video_pruning_rate", "video_pruning_method"),
        ),
        _TEXT_ALONE,
    ),
    **dict.fromkeys(("enable_cumem_allocator", "sleep_mode_offload_cudagraph"), _GPU_MEMORY),
    **dict.fromkeys(
        ("enable_sleep_mode", "sleep_mode_backend"),
        "every engine can sleep; POST /sleep on the admin_socket",
    ),
    "ubatch_size": _BATCH,
    "prefix_caching_hash_algo": "blocks are hashed with a key of the process's own",
    "swa_bounded_replay": "blocks behind a window are shared like others",
    "disable_log_stats": "statistics are not logged",
    "disable_log_requests": "a request is one line without its text, which log_level leaves out",
    "enable_log_requests": "a request is one line of the log; log_prompts adds its text",
    "enable_log_deltas": "answers are never logged",
    "max_log_len": "a prompt is logged only with log_prompts, and then cut",
    "log_error_stack": "unexpected errors are always logged with their stack",
    **dict.fromkeys(
        ("disable_uvicorn_access_log", "disable_access_log_for_endpoints"),
        "uvicorn is not used; log_level leaves out the lines of requests",
    ),
    "guided_decoding_backend": _ONE_GRAMMAR_ENGINE,
    "guided_decoding_disable_fallback": _ONE_GRAMMAR_ENGINE,
    "enable_reasoning": "reasoning is separated wherever its format is known",
    "enable_auto_tool_choice": "a model whose format of calls is known may always call tools",
    "exclude_tools_when_tool_choice_none": "they are always left out then",
    "allow_credentials": "cookies mean nothing here",
    "disable_frontend_multiprocessing": "the front end is one process; see also --engine inline",
    "disable_fastapi_docs": "/docs needs the key like everything else, and lists routes alone",
    "enable_offline_docs": "/docs loads nothing from elsewhere",
    "enable_prompt_tokens_details": "they are always returned",
    "enable_request_id_headers": "they are always sent",
    "show_hidden_metrics_for_version": "/metrics hides none",
    "enable_ssl_refresh": "a changed certificate is always read again",
    "enable_server_load_tracking": "/metrics always contains the load",
    "enable_tokenizer_info_endpoint": "the route is always there, and needs a key",
    "enable_scale_out": "the routes to render and to generate from token ids are always there",
    "enable_fault_tolerance": "it is always on: another engine continues all requests",
    "kv_cache_metrics": "/metrics has all there are",
    "allow_deprecated_quantization": "each supported format is supported for good",
    "allow_deprecated_model": "each supported model is supported for good",
}

Test = Callable[[Any], bool]


def _among(*values: Any) -> Test:
    """Return the test for one of these values."""
    return lambda value: value in values and type(value) in {type(each) for each in values}


def _everything(value: Any) -> bool:
    """Return whether a list of methods or headers, or its JSON, allows all of them."""
    return _parsed(value) in ("*", ["*"])


def _parsed(value: Any) -> Any:
    """Return what a text holds as JSON, or the value itself."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


# Files that are read, for the patterns of those that are not to be.
_READ = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    *("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    *("model.gguf", "model-q8_0.gguf"),
)


def _spares_weights(value: Any) -> bool:
    """Return whether no pattern, of one or of several, fits a file that is read."""
    patterns = [value] if isinstance(value, str) else value or ()
    return not any(fnmatch(name, str(pattern)) for pattern in patterns for name in _READ)


_SHAPE_KEYS = ("backend", "disable_fallback")  # those that cannot change an answer


def _leaves_shapes(value: Any) -> bool:
    """Return whether settings of structured outputs change nothing but the engine's name."""
    given = _parsed(value)
    if not isinstance(given, Mapping):
        return given is None
    return not any(given[key] for key in given if key not in _SHAPE_KEYS)


# Options that are accepted with the values that are the case here, and refused with others.
FIXED: Mapping[str, tuple[Test, str]] = {
    "api_server_count": (_among(1, None), "there is one front end"),
    **dict.fromkeys(
        ("enable_dbo", "enable_elastic_ep"),
        (_among(False), _RANKS),
    ),
    "fully_sharded_loras": (_among(False), "all ranks read one copy of an adapter"),
    "enable_tower_connector_lora": (_among(False), _TEXT_ALONE),
    **dict.fromkeys(
        ("enable_mixed_moe_lora_format", "enable_moe_shared_loras"),
        (_among(False), "adapters change no experts"),
    ),
    "cpu_offload_gb": (_among(0), _GPU_MEMORY),
    "config_format": (_among("auto", "hf"), "a model is described by its config.json"),
    "model_impl": (_among("auto", "vllm"), "a model has one implementation"),
    "tokenizer_mode": (_among("auto", "hf", "slow", "fast"), "tokenizer.json and GGUF are read"),
    "task": (
        _among("auto", "generate", "embed", "embedding", "classify", "score", "reward"),
        _TASKS,
    ),
    "runner": (_among("auto", "generate", "pooling"), _TASKS),
    "convert": (_among("auto", "none", "embed", "classify", "reward"), _TASKS),
    "download_dir": (
        _among(None),
        "files are kept where HF_HUB_CACHE and OCTAVO_CACHE say; set those",
    ),
    "ignore_patterns": (
        _spares_weights,
        "only files that are needed are fetched, these among them",
    ),
    "revision": (
        _among(None, "main"),
        "a revision is a part of the model's name, as in org/name@v1",
    ),
    "tokenizer_revision": (
        _among(None, "main"),
        "a revision is a part of the name, as in tokenizer=org/name@v1",
    ),
    "logprobs_mode": (
        _among("raw_logprobs"),
        "log-probabilities are those of the model, before any setting of the request",
    ),
    "stream_interval": (_among(1), "each token is sent as soon as it is there"),
    "watermark": (_among(0, 0.0), "a waiting prompt is scheduled as soon as there is room"),
    "scheduler_reserve_full_isl": (_among(True), "a prompt waits until all of it has room"),
    "prefix_cache_retention_interval": (
        _among(0, None),
        "blocks are kept until their memory is needed",
    ),
    "disable_hybrid_kv_cache_manager": (_among(False), "layers with windows have blocks apart"),
    "per_request_spec_decode_metrics": (
        _among("none"),
        "/v1/requests/{id}/explain says how many drafts were accepted",
    ),
    "structured_outputs_config": (
        _leaves_shapes,
        "other settings than the grammar engine's name are a request's own, in structured_outputs",
    ),
    "guided_decoding_disable_any_whitespace": (
        _among(False),
        "requests set disable_any_whitespace in structured_outputs",
    ),
    "allowed_methods": (_everything, _CORS),
    "allowed_headers": (_everything, _CORS),
    "response_role": (_among("assistant"), "the role of answers is always assistant"),
    "enable_log_outputs": (_among(False), "answers are never logged"),
    "anthropic_disabled_thinking_effort": (_among("auto"), "thinking is switched off then"),
    "tool_strict_level": (_among("auto", None), "a tool says itself, by strict"),
    "trust_request_mm_kwargs": (_among(False), _TEXT_ALONE),
    "fingerprint_mode": (_among("full"), "there is one"),
    "calculate_kv_scales": (
        _among(False),
        "KV in few bits has its scales computed as it is written",
    ),
}

# Options, of the engine or of the server, that ask for what Octavo does not have. A misspelt option
# is compared with Octavo's own names only, so these need no near miss.
MISSING: Mapping[str, str] = {
    "lora_extra_vocab_size": "adapters add no tokens to the vocabulary",
    "max_lora_cls_labels": "adapters have no classes of their own",
    "default_mm_loras": _TEXT_ALONE,
    **dict.fromkeys(
        ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cuda_graph_sizes"),
        _GRAPH_SIZES,
    ),
    **dict.fromkeys(
        (
            *("dp_supervisor_probe_interval_s", "dp_supervisor_probe_timeout_s"),
            *("dp_supervisor_probe_failure_threshold", "all2all_backend"),
            *("expert_placement_strategy", "enable_ep_weight_filter", "elastic_ep_max_dp_size"),
            *("dcp_comm_backend", "dcp_q_replicate", "dcp_kv_cache_interleave_size"),
            *("cp_kv_cache_interleave_size", "dbo_decode_token_threshold"),
            *("dbo_prefill_token_threshold", "enable_hc_sp", "enable_batch_sharded_sampling"),
            *("worker_cls", "worker_extension_cls"),
            *("ray_workers_use_nsight", "fault_tolerance_config"),
        ),
        _RANKS,
    ),
    **dict.fromkeys(
        (*("data_parallel_multi_port_external_lb", "data_parallel_supervisor_port"),),
        "one front end serves all engines; for a balancer of your own, start a server for each "
        "engine, with --data-parallel-rank, each on a port of its own",
    ),
    **dict.fromkeys(
        ("numa_bind", "numa_bind_nodes", "numa_bind_cpus"),
        "each rank of tensor_parallel_size is bound to a node by itself; for others, start it "
        "under numactl",
    ),
    "device_ids": ONE_DEVICE,
    **dict.fromkeys(
        (
            *("mm_processor_kwargs", "media_io_kwargs", "enable_mm_embeds", "mm_encoder_only"),
            *("allowed_local_media_path", "allowed_media_domains", "mm_encoder_fp8_scale_path"),
            *("mm_encoder_fp8_scale_save_path", "mm_encoder_fp8_scale_save_margin"),
        ),
        _TEXT_ALONE,
    ),
    **dict.fromkeys(
        (
            *("kv_transfer_config", "ec_transfer_config"),
            *("ec_manager_config", "weight_transfer_config"),
            *("kv_offloading_size", "kv_offloading_backend"),
        ),
        _TRANSFER,
    ),
    **dict.fromkeys(
        (
            *("mamba_cache_mode", "mamba_cache_dtype", "mamba_ssm_cache_dtype"),
            *("mamba_block_size", "enable_mamba_cache_stochastic_rounding"),
            *("mamba_cache_philox_rounds", "enable_mamba_shared_prefix_checkpoint"),
            *("use_replayssm", "replayssm_buffer_len"),
        ),
        _STATES,
    ),
    **dict.fromkeys(
        (
            *("offload_backend", "cpu_offload_params", "offload_group_size", "offload_params"),
            *("offload_num_in_group", "offload_prefetch_step"),
        ),
        _GPU_MEMORY,
    ),
    "tool_server": "the server calls no tools itself",
    "reasoning_parser_plugin": "--tool-parser-plugin describes formats of both kinds",
    "reasoning_effort_map": "send an effort that the template knows",
    "enable_prompt_embeds": "prompts are texts or token ids; vectors instead of them come as a "
    "pickle, which could run code",
    "skip_tokenizer_init": "a model needs its tokenizer; token ids go to /inference/v1/generate",
    "logits_processor_pattern": "all of --logits-processors serve every request",
    "io_processor_plugin": "plugins are not loaded",
    "model_class_overrides": _NO_CODE,
    "sleep_preserve_parameter_names": "an engine sleeps without its weights",
    "hf_config_path": "the config.json lies beside the weights",
    "hf_token": "other users could see it in the list of processes; set HF_TOKEN instead",
    "model_loader_extra_config": "the files' format is seen from the files",
    "quantization_config": "cpu_weights chooses the format of weights in memory",
    "rope_scaling": "change rope_scaling by --hf-overrides",
    "rope_theta": "change rope_theta by --hf-overrides",
    "disable_sliding_window": "windows are a part of the model",
    "kv_sharing_fast_prefill": "no model that is supported shares KV between its layers",
    "kv_cache_dtype_skip_layers": "all layers have one kv_cache_dtype",
    "prefix_match_unit": "prefixes are shared in blocks of block_size",
    "max_num_scheduled_tokens": _BATCH,
    "max_num_partial_prefills": _BATCH,
    "max_num_active_seqs": "max_num_seqs is the limit",
    "max_long_partial_prefills": "long_prefill_token_threshold limits the chunks of long prompts",
    "long_prefill_token_threshold_adaptive": "long_prefill_token_threshold is the same always",
    "prefill_schedule_interval": "prompts and answers share every step",
    "num_scheduler_steps": "steps are planned one at a time; see async_scheduling",
    "preemption_mode": "what is preempted is computed again",
    "scheduler_cls": "there is one scheduler; see scheduling_policy",
    "scheduler_delay_factor": "a waiting prompt is scheduled as soon as there is room",
    "num_lookahead_slots": "speculative_config sets the number of drafts",
    "speculative_model": "it is the key 'model' of speculative_config; ngram needs none",
    "spec_model": "it is the key 'model' of speculative_config; ngram needs none",
    "num_speculative_tokens": "it is a key of speculative_config",
    "override_attention_dtype": "dtype is the type of everything",
    "use_fp64_gumbel": "draws have one precision",
    "additional_config": "there are no other settings",
    "override_neuron_config": "there is no backend for it",
    "override_pooler_config": "it is called pooler_config",
    "diffusion_config": "models write from left to right",
    "engram_config": "no model that is supported has such tables",
    "aux_output_config": "the engine returns tokens and log-probabilities alone",
    "enable_return_routed_experts": "the experts that were chosen are not reported",
    "return_sampling_mask": "the tokens that could have been drawn are not reported",
    "enable_trace_replay": "texts are not forced token by token",
    "watermark_config": "texts are not watermarked",
    "watchdog_config": "give --watchdog-seconds",
    "enable_mfu_metrics": "`octavo bench profile` measures what a step reaches",
    "enable_layerwise_nvtx_tracing": "`octavo bench profile` lists the parts of a step",
    "enable_logging_iteration_details": "/diagnosis on the admin socket describes the last steps",
    "kv_cache_metrics_sample": "/metrics has all there are",
    "custom_histogram_buckets": "the buckets of histograms are fixed",
    "profiler_config": "`octavo bench profile` lists the parts of a step",
    "fingerprint_value": "the fingerprint is that of the version",
    "fail_on_environ_validation": "variables without effect are named when the server starts",
    "log_config_file": "log_level sets what is written",
    "logging_config": "log_level sets what is written",
    "ssl_ciphers": "TLS has the ciphers that Python's ssl module chooses",
    "grpc": "it is served beside HTTP; name a port with --grpc-port",
    "cohere_format": "prompts are written by the model's chat template",
    "chat_template_text_format": "it is detected from the template",
    "use_v2_block_manager": "there is one",
    "block_allocator": "there is one",
}

# Names that people write, and the option that they mean, where the two names are not similar.
SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "ctx",
            "context",
            "context_size",
            "context_window",
            "num_ctx",
            "n_ctx",
            "ctx_len",
            "max_context_length",
        ),
        "max_model_len",
    ),
    **dict.fromkeys(("max_seq_len", "max_sequence_length", "seq_len"), "max_model_len"),
    **dict.fromkeys(("max_tokens", "max_new_tokens", "n_predict"), "max_output_tokens"),
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
        "override_generation_config",
    ),
    **dict.fromkeys(("num_parallel", "n_parallel", "slots", "concurrency"), "max_num_seqs"),
    **dict.fromkeys(("max_batch_size", "max_concurrent_requests"), "max_num_seqs"),
    **dict.fromkeys(("workers", "num_workers", "tokenizer_worker_num"), "prompt_workers"),
    **dict.fromkeys(("name", "model_name", "model_alias"), "served_model_name"),
    **dict.fromkeys(("key", "token", "auth_token", "api_token"), "api_key"),
    **dict.fromkeys(("n_threads", "cpu_threads", "num_cpu_threads"), "num_threads"),
    **dict.fromkeys(("bind", "listen", "address", "hostname", "ip"), "host"),
    **dict.fromkeys(("cors", "cors_allow_origin", "origins"), "allowed_origins"),
    **dict.fromkeys(("ssl_cert", "tls_cert", "cert"), "ssl_certfile"),
    **dict.fromkeys(("ssl_key", "tls_key"), "ssl_keyfile"),
    **dict.fromkeys(("request_timeout", "max_time"), "max_request_seconds"),
    **dict.fromkeys(("verbosity", "logging_level", "loglevel"), "log_level"),
    **dict.fromkeys(("precision", "weights", "quantize", "quant"), "cpu_weights"),
    **dict.fromkeys(("kv_cache_size", "cache_size", "kv_cache_space"), "kv_cache_memory_bytes"),
    **dict.fromkeys(("prefix_caching", "enable_radix_cache"), "enable_prefix_caching"),
    **dict.fromkeys(("chunked_prefill",), "enable_chunked_prefill"),
    **dict.fromkeys(("num_draft_tokens", "draft_tokens"), "spec_tokens"),
    **dict.fromkeys(("unix_socket", "socket"), "uds"),
}


def advice_on(names: Iterable[str]) -> list[str]:
    """Return a phrase for each of these variables that has no effect here, with what to do."""
    found = []
    for name in names:
        if name in WITHOUT_EFFECT:
            found.append(f"{name} ({WITHOUT_EFFECT[name]})")
        elif name.startswith(_PREFIX) and name not in REFUSED:
            found.append(f"{name} (write its flag instead)")
    return found
