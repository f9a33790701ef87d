"""vLLM's options that Octavo does not have as fields of its own, each with the reason."""

from __future__ import annotations

from typing import Any

ADAPTERS = "there are no adapters yet"
_GRAPHS = "no backend captures graphs"
_ONE_PROCESS = "there is one process"
_TEXT_ALONE = "models read text alone"
_STRUCTURED = "structured output is not supported yet"
_TASKS = "a model serves what its files make of it, generating and vectors side by side"
_TRANSFER = "KV stays in the engine that computed it"

# Options that change nothing here, whatever their value.
INERT = {
    "trust_remote_code": "no code of a model is ever run",
    "gpu_memory_utilization": "kv_cache_memory_bytes sets the size of the KV cache",
    "swap_space": "what is preempted is computed again",
    "enforce_eager": _GRAPHS,
    "load_format": "it is seen from the files",
    **dict.fromkeys(("task", "runner", "convert"), _TASKS),
    "tokenizer_mode": "there is one",
    "max_seq_len_to_capture": "there are no CUDA graphs",
    "disable_custom_all_reduce": _ONE_PROCESS,
    "distributed_executor_backend": _ONE_PROCESS,
    "compilation_config": "models are not compiled",
    "optimization_level": "models are not compiled",
    "performance_mode": "there is one",
    "attention_backend": "the backend knows",
    "max_parallel_loading_workers": "weights are read where they lie",
    "limit_mm_per_prompt": _TEXT_ALONE,
    "prefix_caching_hash_algo": "blocks are hashed with a key of the process's own",
    "disable_log_stats": "statistics are not logged",
    "disable_log_requests": "a request is one line without its text, which log_level leaves out",
    "enable_log_requests": "a request is one line of the log; log_prompts adds its text",
}

# Options that are accepted with their one possible value here, and refused with others.
FIXED: dict[str, tuple[Any, str]] = {
    "tensor_parallel_size": (1, _ONE_PROCESS),
    "pipeline_parallel_size": (1, _ONE_PROCESS),
    "data_parallel_size": (1, _ONE_PROCESS),
    "decode_context_parallel_size": (1, _ONE_PROCESS),
    "enable_expert_parallel": (False, _ONE_PROCESS),
    "download_dir": (None, "files are kept where HF_HUB_CACHE and OCTAVO_CACHE say; set those"),
    "cpu_offload_gb": (0, "the model is in the CPU's memory already"),
    "quantization": (None, "it is seen from the files"),
    "revision": (None, "a revision is a part of the model's name, as in org/name@v1"),
    "enable_lora": (False, ADAPTERS),
}

# Options, of the engine or of the server, that ask for what Octavo does not have. A misspelt option
# is compared with Octavo's own names only, so these need no near miss.
MISSING = {
    **dict.fromkeys(
        (
            "max_loras",
            "max_lora_rank",
            "max_cpu_loras",
            "lora_dtype",
            "lora_modules",
            "fully_sharded_loras",
            "lora_extra_vocab_size",
            "lora_target_modules",
            "default_mm_loras",
            "specialize_active_lora",
            "enable_tower_connector_lora",
        ),
        ADAPTERS,
    ),
    **dict.fromkeys(
        ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cuda_graph_sizes"), _GRAPHS
    ),
    **dict.fromkeys(
        (
            "data_parallel_size_local",
            "data_parallel_rank",
            "data_parallel_start_rank",
            "data_parallel_address",
            "data_parallel_rpc_port",
            "data_parallel_backend",
            "data_parallel_external_lb",
            "data_parallel_hybrid_lb",
            "prefill_context_parallel_size",
            "enable_eplb",
            "eplb_config",
            "all2all_backend",
            "nnodes",
            "node_rank",
            "master_addr",
            "master_port",
            "worker_cls",
            "worker_extension_cls",
            "headless",
            "ray_workers_use_nsight",
        ),
        _ONE_PROCESS,
    ),
    **dict.fromkeys(
        (
            "mm_processor_kwargs",
            "mm_processor_cache_gb",
            "mm_processor_cache_type",
            "mm_encoder_tp_mode",
            "language_model_only",
            "skip_mm_profiling",
            "interleave_mm_strings",
            "allowed_local_media_path",
            "allowed_media_domains",
            "media_io_kwargs",
            "enable_mm_embeds",
        ),
        _TEXT_ALONE,
    ),
    **dict.fromkeys(
        ("guided_decoding_disable_fallback", "guided_decoding_disable_any_whitespace"), _STRUCTURED
    ),
    **dict.fromkeys(
        (
            "kv_transfer_config",
            "kv_events_config",
            "ec_transfer_config",
            "weight_transfer_config",
            "kv_offloading_size",
            "kv_offloading_backend",
        ),
        _TRANSFER,
    ),
    "tool_server": "the server calls no tools itself",
    "reasoning_parser_plugin": "--tool-parser-plugin describes formats of both kinds",
    "enable_prompt_embeds": "prompts are texts or token ids",
    "enable_sleep_mode": "an idle engine keeps its memory; end it instead",
    "hf_config_path": "the config.json lies beside the weights",
    "hf_token": "other users could see it in the list of processes; set HF_TOKEN instead",
    "code_revision": "no code of a model is ever run",
    "tokenizer_revision": "a revision is a part of the name, as in tokenizer=org/name@v1",
    "ignore_patterns": "only the files that are needed are fetched",
    "model_loader_extra_config": "the files' format is seen from the files",
    "rope_scaling": "change rope_scaling in the model's config.json",
    "rope_theta": "change rope_theta in the model's config.json",
    "disable_sliding_window": "windows are a part of the model",
    "disable_cascade_attn": "shared prefixes are read together without a setting",
    "moe_backend": "the backend determines it",
    "linear_backend": "the backend determines it",
    "offload_backend": "the model is in the CPU's memory already",
    "kv_sharing_fast_prefill": "no model that is supported shares KV between its layers",
    "calculate_kv_scales": "the int8 KV cache computes its scales as it is written",
    "mamba_cache_mode": "models with states are not supported yet",
    "mamba_cache_dtype": "models with states are not supported yet",
    "mamba_ssm_cache_dtype": "models with states are not supported yet",
    "mamba_block_size": "models with states are not supported yet",
    "max_num_scheduled_tokens": "max_num_batched_tokens is the limit of a step",
    "max_num_partial_prefills": "max_num_batched_tokens is the limit of a step",
    "max_long_partial_prefills": "long_prefill_token_threshold limits the chunks of long prompts",
    "num_scheduler_steps": "steps are planned one at a time; see async_scheduling",
    "preemption_mode": "what is preempted is computed again",
    "scheduler_cls": "there is one scheduler; see scheduling_policy",
    "scheduler_delay_factor": "a waiting prompt is scheduled as soon as there is room",
    "stream_interval": "each token is sent as soon as it is there",
    "num_lookahead_slots": "speculative_config sets the number of drafts",
    "speculative_model": "speculative_config sets how drafts are made; ngram needs no model",
    "spec_model": "speculative_config sets how drafts are made; ngram needs no model",
    "num_speculative_tokens": "it is a key of speculative_config",
    "logits_processor_pattern": "requests name the processors of LLM(logits_processors=...)",
    "logprobs_mode": "log-probabilities are those of the model, before any setting of the request",
    "override_attention_dtype": "dtype is the type of everything",
    "additional_config": "there are no other settings",
    "override_neuron_config": "there is no backend for it",
    "override_pooler_config": "requests say how to pool",
    "pooler_config": "requests say how to pool",
    "kv_cache_metrics": "/metrics has all there are",
    "enable_mfu_metrics": "`octavo bench profile` measures what a step reaches",
    "collect_detailed_traces": "install OpenTelemetry's ASGI middleware with --middleware",
    "show_hidden_metrics_for_version": "/metrics has all there are",
    "profiler_config": "`octavo bench profile` lists the parts of a step",
    "enable_fault_tolerance": "it is always on: another engine continues all requests",
    "return_tokens_as_token_ids": "requests ask for it themselves",
    "enable_tokenizer_info_endpoint": "the route is always there, and needs a key",
    "fingerprint_mode": "there is one",
    "log_config_file": "log_level sets what is written",
    "tokens_only": "the server speaks of texts and tokens alike",
    "grpc": "it is served beside HTTP; name a port with --grpc-port",
    "chat_template_text_format": "it is detected from the template",
    "use_v2_block_manager": "there is one",
    "block_allocator": "there is one",
}
