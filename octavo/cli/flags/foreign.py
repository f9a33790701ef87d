"""The flags of vLLM that Octavo has no setting for; `octavo.options.foreign` says why."""

from __future__ import annotations

import argparse

from octavo.cli.parsing import Parser
from octavo.options.foreign import FIXED, INERT
from octavo.options.processes.data_parallel import NAMES, SWITCHES

# Those that take no value; all others take one.
ALONE = frozenset(
    {
        *("trust_remote_code", "cudagraph_metrics", "jit_monitor_verbose"),
        *("monokernel", "enable_flashinfer_autotune", "enable_flash_late_interaction"),
        *("disable_cascade_attn", "disable_custom_all_reduce", "enable_nccl_comm_suspend"),
        *("disable_nccl_for_dp_synchronization", "enable_shm_tensor_arena"),
        *("aggregate_engine_logging", "use_tqdm_on_load", "language_model_only"),
        *("skip_mm_profiling", "interleave_mm_strings", "disable_chunked_mm_input"),
        *("mm_device_do_normalize", "enable_cumem_allocator", "sleep_mode_offload_cudagraph"),
        *("enable_sleep_mode", "swa_bounded_replay", "disable_log_stats", "enable_log_deltas"),
        *("disable_log_requests", "enable_log_requests", "log_error_stack"),
        *("disable_uvicorn_access_log", "guided_decoding_disable_fallback"),
        *("enable_reasoning", "enable_auto_tool_choice", "allow_credentials"),
        *("exclude_tools_when_tool_choice_none", "disable_frontend_multiprocessing"),
        *("disable_fastapi_docs", "enable_offline_docs", "enable_prompt_tokens_details"),
        *("enable_request_id_headers", "enable_ssl_refresh", "enable_server_load_tracking"),
        *("enable_tokenizer_info_endpoint", "enable_scale_out", "enable_fault_tolerance"),
        *("kv_cache_metrics", "allow_deprecated_quantization"),
        *("allow_deprecated_model", "enable_dbo", "enable_elastic_ep"),
        *("scheduler_reserve_full_isl", "disable_hybrid_kv_cache_manager"),
        *("fully_sharded_loras", "enable_tower_connector_lora", "specialize_active_lora"),
        *("enable_mixed_moe_lora_format", "enable_moe_shared_loras"),
        *("guided_decoding_disable_any_whitespace", "enable_log_outputs"),
        *("trust_request_mm_kwargs", "calculate_kv_scales"),
    }
)
_SEVERAL = frozenset({"ignore_patterns"})  # take one value or more
SHORT = {  # vLLM's short flags
    "data_parallel_size_local": "-dpl",
    "data_parallel_start_rank": "-dpr",
    "data_parallel_rank": "-dpn",
    "data_parallel_address": "-dpa",
    "data_parallel_rpc_port": "-dpp",
    "data_parallel_hybrid_lb": "-dph",
    "data_parallel_external_lb": "-dpe",
    "api_server_count": "-asc",
    "compilation_config": "-cc",
    "attention_config": "-ac",
    "optimization_level": "-O",
}


def add_foreign_flags(parser: Parser) -> None:
    """Add the flags, hidden, whose values are checked with those of the engine."""
    group = parser.add_argument_group("flags of vLLM")
    for name in (*INERT, *FIXED, *NAMES):
        long = "--" + name.replace("_", "-")
        flags = (long, SHORT[name]) if name in SHORT else (long,)
        if any(flag in parser.flags() for flag in flags):
            continue  # the command has its own
        if name in ALONE or name in SWITCHES:
            group.add_argument(
                *flags,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
        else:
            group.add_argument(
                *flags,
                type=_literal,
                nargs="+" if name in _SEVERAL else None,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )


def _literal(text: str) -> int | float | bool | str | None:
    """Convert a value to what a Python caller would pass, so that the two compare equal."""
    words: dict[str, bool | None] = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
