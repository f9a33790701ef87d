"""The flags of llama-server and SGLang: those that mean the same here, and what becomes of others.

As with vLLM's, a flag is ignored only if it can change no answer, nothing of the server's safety,
and nothing that its user counts on.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from octavo.cli.flags.cache_types import add_cache_types, follow_cache_types
from octavo.cli.flags.expert_ranks import add_expert_ranks, follow_expert_ranks
from octavo.cli.parsing import Parser, UsageError
from octavo.options.foreign import ONE_DEVICE

log = logging.getLogger("octavo.cli")

# Other names of flags.
SAME: Mapping[str, str] = {
    # llama-server
    **dict.fromkeys(("-m", "-hf", "-hfr", "--hf-repo"), "--model"),
    **dict.fromkeys(("-c", "--ctx-size"), "--max-model-len"),
    **dict.fromkeys(("-np", "--parallel"), "--max-num-seqs"),
    **dict.fromkeys(("-t", "--threads"), "--num-threads"),
    **dict.fromkeys(("-a", "--alias"), "--served-model-name"),
    "--ssl-key-file": "--ssl-keyfile",
    "--ssl-cert-file": "--ssl-certfile",
    "--api-prefix": "--root-path",
    "--cors-origins": "--allowed-origins",
    "--sse-ping-interval": "--ping-seconds",
    "--chat-template-file": "--chat-template",
    "--chat-template-kwargs": "--default-chat-template-kwargs",
    "-s": "--seed",
    # SGLang
    **dict.fromkeys(("--model-path", "--model-id"), "--model"),
    "--tokenizer-path": "--tokenizer",
    "--context-length": "--max-model-len",
    "--mem-fraction-static": "--gpu-memory-utilization",
    "--max-running-requests": "--max-num-seqs",
    "--max-loras-per-batch": "--max-loras",
    "--max-loaded-loras": "--max-cpu-loras",
    "--max-queued-requests": "--max-num-queued-reqs",
    "--chunked-prefill-size": "--max-num-batched-tokens",
    "--schedule-policy": "--scheduling-policy",
    "--random-seed": "--seed",
    "--page-size": "--block-size",
    "--json-model-override-args": "--hf-overrides",
    "--preferred-sampling-params": "--override-generation-config",
    "--watchdog-timeout": "--watchdog-seconds",
}
_SAMPLING = "--override-generation-config"
_SPECULATION = "--speculative-config"
_TEMPLATE = "--default-chat-template-kwargs"
_DRAFT_MODEL = (
    *("-md", "--model-draft", "--spec-draft-model", "-hfd", "--hf-repo-draft", "--spec-draft-hf"),
    "-hfrd",
    *("--speculative-draft-model-path", "--speculative-draft-model"),
)
_DRAFT_TOKENS = (
    *("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max", "--speculative-num-steps"),
)
# Flags that stand for the opposite of a flag, or for a key of one that holds a JSON object.
KEYS: Mapping[str, str] = {
    "--cache-prompt": "--enable-prefix-caching",
    **dict.fromkeys(("--temp", "--temperature"), f"{_SAMPLING}.temperature"),
    **dict.fromkeys(("--predict", "--n-predict"), f"{_SAMPLING}.max_new_tokens"),
    "--top-k": f"{_SAMPLING}.top_k",
    "--top-p": f"{_SAMPLING}.top_p",
    "--min-p": f"{_SAMPLING}.min_p",
    "--repeat-penalty": f"{_SAMPLING}.repetition_penalty",
    **dict.fromkeys(("--no-cache-prompt", "--disable-radix-cache"), "--no-enable-prefix-caching"),
    **dict.fromkeys(("--webui", "--ui"), "--console"),
    **dict.fromkeys(("--no-webui", "--no-ui"), "--no-console"),
    "--reasoning-effort": f"{_TEMPLATE}.reasoning_effort",
    **dict.fromkeys(("-v", "--verbose", "--log-verbose"), "--log-level=debug"),
    "--metrics": "--metrics-names=llamacpp",
    "--jinja": "--chat-template-dates",
    "--pooling": "--pooler-config.pooling_type",
    **dict.fromkeys(_DRAFT_MODEL, f"{_SPECULATION}.model"),
    **dict.fromkeys(_DRAFT_TOKENS, f"{_SPECULATION}.num_speculative_tokens"),
    "--spec-default": f"{_SPECULATION}.method=ngram",
    "--speculative-algorithm": f"{_SPECULATION}.method",
    "--speculative-eagle-topk": f"{_SPECULATION}.draft_candidates",
    "--speculative-draft-model-quantization": f"{_SPECULATION}.quantization",
}
# Flags whose values stand for something else.
_THINKING = {
    **dict.fromkeys(("on", "auto"), f"{_TEMPLATE}.enable_thinking=true"),
    "off": f"{_TEMPLATE}.enable_thinking=false",
}
_TYPES_OF_DRAFTS = {
    **dict.fromkeys(("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"), "ngram"),
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
}
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "--speculative-draft-model-quantization": {"unquant": f"{_SPECULATION}.quantization=bf16"},
    **dict.fromkeys(("-rea", "--reasoning"), _THINKING),
    "--pooling": {"none": "--pooler-config.task=token_embed"},
    "--spec-type": {
        name: f"{_SPECULATION}.method={method}" for name, method in _TYPES_OF_DRAFTS.items()
    },
}
# Values that mean the defaults.
USUAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("-c", "--ctx-size"), ("0",)),
    **dict.fromkeys(("-np", "--parallel", "-t", "--threads", "-s"), ("-1",)),
    **dict.fromkeys(("--predict", "--n-predict"), ("-1", "-2")),
    "--reasoning-effort": ("default",),
    "--sleep-idle-seconds": ("-1",),
    "--spec-type": ("none",),
}
# Flags that take several values with commas between them.
LISTS = ("-a", "--alias")


class Other(NamedTuple):
    """Flags that this server has no setting for."""

    flags: tuple[str, ...]
    reason: str
    harmless: tuple[str, ...] | None = ()  # values that change nothing; None: all
    is_alone: bool = False


_TEXT = "models read text alone"
_CHOSEN = "how many drafts are made follows from how often they are right, and what they cost"
_LOOKUP = "--spec-method suffix keeps earlier answers in memory"
_NGRAMS = f"the keys prompt_lookup_min and prompt_lookup_max of {_SPECULATION} set their sizes"
_VERIFIED = "every draft is verified exactly"
_AS_THE_MODEL = "a draft model is loaded, placed and run as the model is"
_SAMPLER = "there is no such sampler"
_THEIRS = "requests set it themselves"
_UI = "the console is one page without settings; see --console"
_TOOLS = "clients run the tools that a model calls"
_ROUTER = "all models have the same settings; name them, or see --models-dir"
_HERE = "requests describe the shape of their answers themselves"
_ROPE = "positions are the model's; see --hf-overrides"
_PLACES = "threads are placed by the system; start it under numactl or taskset"
_NODES = (
    "for threads on all nodes, give --tensor-parallel-size their number: each rank is bound to "
    "one; for those of one node, start it under numactl"
)
_BATCH = "--max-num-batched-tokens is the limit of a step"
_LOGS = "--log-level sets what is written to standard error"
_ALWAYS = "it is always so"
_OFF_ALREADY = "it is never so"

OTHERS: tuple[Other, ...] = (
    # llama-server, ignored
    Other(("-b", "--batch-size"), _BATCH, None),
    Other(("-ub", "--ubatch-size"), _BATCH, None),
    Other(("-tb", "--threads-batch"), "--num-threads counts for prompts too", None),
    Other(("--threads-http",), "requests are read by one thread", None),
    Other(("-fa", "--flash-attn"), "the backend chooses its kernels", None),
    Other(("--mmap", "--no-mmap"), "weights are mapped from their files", None, is_alone=True),
    Other(("--warmup", "--no-warmup"), "a test step runs before requests", None, is_alone=True),
    Other(("-kvu", "--kv-unified", "--swa-full"), "sequences share blocks", None, is_alone=True),
    Other(("-cram", "--cache-ram", "--cache-reuse"), "blocks are shared in KV memory", None),
    Other(("-ctxcp", "--ctx-checkpoints"), "blocks are shared in KV memory", None),
    Other(("-sps", "--slot-prompt-similarity"), "prefixes are found by their content", None),
    Other(("-cb", "--cont-batching"), _ALWAYS, None, is_alone=True),
    Other(("-cmoe", "--cpu-moe", "--no-op-offload"), _ALWAYS, None, is_alone=True),
    Other(("-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn"), _ALWAYS, None),
    Other(("--embedding", "--embeddings", "--rerank", "--reranking"), _ALWAYS, None, is_alone=True),
    Other(("--no-context-shift",), _OFF_ALREADY, None, is_alone=True),
    Other(("--no-mmproj", "--no-agent", "--no-perf", "--no-escape"), _OFF_ALREADY, None, True),
    Other(("--log-prefix", "--log-timestamps", "-e", "--escape"), _ALWAYS, None, is_alone=True),
    Other(("--log-colors", "--tags"), "nothing here reads it", None),
    Other(("--defrag-thold", "-dt", "--poll", "--prio"), "the backend needs none", None),
    # llama-server, accepted with some values
    Other(("-ngl", "--gpu-layers", "--n-gpu-layers"), ONE_DEVICE, ("0", "auto")),
    Other(("-sm", "--split-mode"), ONE_DEVICE, ("none", "layer")),
    Other(("-mg", "--main-gpu"), ONE_DEVICE, ("0",)),
    Other(("--numa",), _NODES, ("numactl",)),
    Other(
        ("--reasoning-format",),
        "see --reasoning-parser; none leaves reasoning in the text",
        ("auto", "deepseek"),
    ),
    Other(("-rea", "--reasoning"), "it is on, off or auto"),
    Other(("--reasoning-budget",), "requests have thinking_token_budget", ("-1",)),
    Other(("--cors-methods",), "pages of allowed origins may use each route", ("*",)),
    Other(("--cors-headers",), "pages of allowed origins may send what routes read", ("*",)),
    Other(("--no-cors-credentials",), "no cookie is read", None, is_alone=True),
    Other(("--embd-normalize",), "vectors have the length 1", ("2",)),
    Other(("--keep",), "a text that is too long is refused, not shifted", ("0",)),
    Other(("-lm", "--load-mode"), "weights are mapped from their files", ("auto", "mmap", "none")),
    Other(("-fit", "--fit"), "what fits is computed from the memory", ("on",)),
    Other(("--presence-penalty",), "requests set it themselves", ("0", "0.0")),
    Other(("--frequency-penalty",), "requests set it themselves", ("0", "0.0")),
    # llama-server, refused
    Other(("-n",), "it is --predict to llama-server and --nnodes to vLLM; write the long name"),
    Other(
        ("-r",),
        "it is --reverse-prompt to llama-server and --node-rank to vLLM; write the long name",
    ),
    Other(
        ("--mlock",), "pages are locked by the system: see systemd's LimitMEMLOCK", is_alone=True
    ),
    Other(("-to", "--timeout"), "see --max-request-seconds and --stall-seconds"),
    Other(("-mu", "--model-url"), "name a file, or a model on the hub"),
    Other(("-dr", "--docker-repo"), "name a file, or a model on the hub"),
    Other(("-hff", "--hf-file"), "the file is a part of the model's name: ORG/NAME:FILE"),
    Other(("-hft",), "other users could see it in the list of processes; set HF_TOKEN instead"),
    Other(("--offline",), "set HF_HUB_OFFLINE=1 instead", is_alone=True),
    Other(("-ts", "--tensor-split", "-ot", "--override-tensor"), ONE_DEVICE),
    Other(("--list-devices",), "see octavo doctor", is_alone=True),
    Other(("--rpc",), "there is one process"),
    Other(("--control-vector",), "only adapters change what a layer computes"),
    Other(("-mm", "--mmproj", "-mmu", "--mmproj-url", "--media-path"), _TEXT),
    Other(("--draft-min", "--draft-n-min", "--draft-p-min", "--spec-draft-n-min"), _CHOSEN, None),
    Other(("--spec-draft-p-min", "--spec-draft-p-split", "--draft-p-split"), _CHOSEN, None),
    Other(
        (
            *("-cd", "--ctx-size-draft", "-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"),
            *("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"),
        ),
        "it shares the model's KV memory",
    ),
    Other(
        ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
        ONE_DEVICE,
        ("0", "auto"),
    ),
    Other(("-devd", "--device-draft", "--spec-draft-device"), ONE_DEVICE, ("none",)),
    Other(("-otd", "--override-tensor-draft", "--spec-draft-override-tensor"), ONE_DEVICE),
    Other(("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe"), ONE_DEVICE),
    Other(("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"), ONE_DEVICE, is_alone=True),
    Other(
        (
            *("-td", "--threads-draft", "-tbd", "--threads-batch-draft"),
            *("--spec-draft-threads", "--spec-draft-threads-batch"),
        ),
        "--num-threads counts for both models",
        None,
    ),
    Other(("-Cd", "--cpu-mask-draft", "-Crd", "--cpu-range-draft", "--cpu-strict-draft"), _PLACES),
    Other(
        ("--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"),
        "it draws where it runs",
        None,
        is_alone=True,
    ),
    Other(("--spec-synth-len", "--spec-synth-rates"), _VERIFIED),
    Other(("--spec-type",), "name one type, or see --spec-method"),
    Other(("--spec-ngram-size-n", "--spec-ngram-size-m", "--spec-ngram-min-hits"), _NGRAMS),
    Other(("--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max"), _NGRAMS),
    Other(("--spec-ngram-mod-n-match", "--spec-ngram-simple-size-n"), _NGRAMS),
    Other(("--spec-ngram-simple-size-m", "--spec-ngram-simple-min-hits"), _NGRAMS),
    Other(("--spec-ngram-map-k-size-n", "--spec-ngram-map-k-size-m"), _NGRAMS),
    Other(("--spec-ngram-map-k-min-hits", "--spec-ngram-map-k4v-size-n"), _NGRAMS),
    Other(("--spec-ngram-map-k4v-size-m", "--spec-ngram-map-k4v-min-hits"), _NGRAMS),
    Other(("-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"), _LOOKUP),
    Other(("--rope-scale", "--rope-freq-base", "--rope-freq-scale"), _ROPE),
    Other(("--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"), _ROPE),
    Other(("--override-kv",), "see --hf-overrides"),
    Other(("--grammar", "--grammar-file", "-j", "--json-schema", "--json-schema-file"), _HERE),
    Other(("--samplers", "--sampler-seq", "--typical", "--top-nsigma"), _THEIRS),
    Other(("--adaptive-target",), _SAMPLER),
    Other(
        (
            *("--xtc-probability", "--xtc-threshold", "--dynatemp-range", "--dynatemp-exp"),
            *("--dry-multiplier", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n"),
            *("--dry-sequence-breaker", "--mirostat", "--mirostat-lr", "--mirostat-ent"),
        ),
        _THEIRS,
    ),
    Other(("-l", "--logit-bias", "--reverse-prompt"), _THEIRS),
    Other(("-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict"), _PLACES),
    Other(("--path", "--ui-config", "--webui-config"), _UI),
    Other(("--tools", "--mcp-servers-config", "--mcp-servers-json"), _TOOLS),
    Other(("--agent",), _TOOLS, is_alone=True),
    Other(("--cors-credentials",), "keys come in headers, and no cookie is read", is_alone=True),
    Other(("--context-shift",), "a text that is too long is refused", is_alone=True),
    Other(("--no-jinja", "--no-cont-batching", "-nocb"), "there is no other way", is_alone=True),
    Other(("--props",), "see --admin-socket", is_alone=True),
    Other(("--slot-save-path",), "KV is not written to files"),
    Other(("--models-preset",), _ROUTER),
    Other(("--reuse-port",), "a port has one server", is_alone=True),
    Other(("-sp", "--special"), "requests set skip_special_tokens themselves", is_alone=True),
    Other(("--log-file", "--log-prompts-dir"), _LOGS),
    Other(("--log-disable",), _LOGS, is_alone=True),
    Other(("-lv", "--verbosity", "--log-verbosity"), _LOGS),
    # SGLang
    Other(("--skip-server-warmup",), _OFF_ALREADY, None, is_alone=True),
    Other(("--enable-metrics", "--enable-cache-report"), _ALWAYS, None, is_alone=True),
    Other(("--enable-lora-overlap-loading",), "adapters load beside the steps", None, True),
    Other(("--lora-backend", "--max-lora-chunk-size"), "the backend chooses its kernels", None),
    Other(("--lora-eviction-policy",), "adapters used longest ago make room", ("lru",)),
    Other(("--is-embedding", "--enable-mixed-chunk", "--log-requests"), _ALWAYS, None, True),
    Other(("--enable-torch-compile", "--sleep-on-idle"), "the backend needs none", None, True),
    Other(("--grammar-backend",), "there is one grammar engine", None),
    Other(("--sampling-backend", "--decode-log-interval"), "the backend has one", None),
    Other(("--cuda-graph-max-bs", "--cuda-graph-bs"), "graphs are captured when needed", None),
    Other(("--max-total-tokens",), "see --kv-cache-memory-bytes and --max-model-len"),
    Other(("--max-prefill-tokens",), _BATCH),
    Other(("--speculative-num-draft-tokens",), "see --speculative-num-steps", None),
    Other(
        ("--speculative-dflash-block-size",),
        "see --speculative-num-steps; a block has one row more than it proposes tokens",
    ),
    Other(("--speculative-draft-window-size",), "the files of a drafter have its windows"),
    Other(("--speculative-ngram-min-match-window-size",), _NGRAMS),
    Other(("--speculative-ngram-max-match-window-size",), _NGRAMS),
    Other(("--speculative-ngram-min-bfs-breadth", "--speculative-ngram-max-bfs-breadth"), _CHOSEN),
    Other(("--speculative-ngram-match-type", "--speculative-ngram-branch-length"), _CHOSEN),
    Other(("--speculative-ngram-max-trie-depth",), _LOOKUP),
    Other(("--speculative-ngram-capacity",), _LOOKUP),
    Other(
        ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"),
        _VERIFIED,
        ("1", "1.0"),
    ),
    Other(
        ("--speculative-attention-mode", "--speculative-draft-attention-backend"),
        "the backend has one",
        None,
    ),
    Other(("--speculative-moe-runner-backend",), "the backend has one", None),
    Other(("--speculative-draft-model-revision",), "write it behind the name: ORG/NAME@REVISION"),
    Other(("--speculative-draft-load-format",), _AS_THE_MODEL),
    Other(("--speculative-token-map",), "the files of a drafter have its tokens (d2t)"),
    Other(("--dist-init-addr",), "give --master-addr and --master-port"),
    Other(
        ("--load-balance-method",),
        "a request goes where its prefix is cached, or where least waits",
        None,
    ),
    Other(("--disaggregation-mode", "--hicache-ratio"), "KV stays in the engine's memory"),
    Other(("--enable-dp-attention",), "an engine is one process", is_alone=True),
    Other(("--enable-multimodal",), _TEXT, is_alone=True),
    Other(("--file-storage-path",), "see --batch-dir"),
    Other(("--admin-api-key",), "operators have the --admin-socket"),
)


def add_other_flags(parser: Parser) -> None:
    """Add the flags, hidden; those of the command and of vLLM go before them."""
    add_cache_types(parser)
    add_expert_ranks(parser)
    parser.add_aliases(SAME)
    parser.add_expansions(KEYS)
    parser.add_meanings(MEANINGS)
    parser.add_usual(USUAL)
    parser.add_lists(LISTS)
    known = {*parser.flags()}
    for row in OTHERS:
        options: dict[str, Any] = {"action": "store_true"} if row.is_alone else {}
        for flag in row.flags:
            if flag not in known:
                parser.add_argument(
                    flag, dest=f"other:{flag}", default=None, help=argparse.SUPPRESS, **options
                )


def check_other_flags(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done; name what has no effect."""
    follow_cache_types(arguments)
    follow_expert_ranks(arguments)
    given = vars(arguments)
    ignored = []
    for row in OTHERS:
        for flag in row.flags:
            value = given.get(f"other:{flag}")
            if value is None:
                continue
            if row.harmless is not None and value not in row.harmless:
                shown = flag if row.is_alone else f"{flag} {value}"
                raise UsageError(f"{shown[:100]} is not supported: {row.reason}")
            ignored.append(f"{flag} ({row.reason})")
    if ignored:
        log.warning("accepted for compatibility, without effect: %s", ", ".join(ignored))
