"""The table's rows, each a case, an engine of ours, its peers, a target.

A row with peers has a target for the ratio to the fastest of them; a row with a bound has one for
our figure itself, and shows its peers beside it. `compare.py` runs each case in every engine that
some row names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.peers.cases import HTTP_REQUESTS, STREAMS

# Engines, by the names that tables have.
GGUF, BF16 = "octavo gguf", "octavo bf16"
LARGE, LARGE_INT8, LARGE_Q4_K = "octavo 1b bf16", "octavo 1b int8", "octavo 1b q4_k"
SERVED = ("octavo serve gguf", "octavo serve bf16")
LLAMA_GGUF, LLAMA_BF16, LLAMA_Q8 = "llama.cpp q4_1", "llama.cpp bf16", "llama.cpp q8_0"
IK_GGUF, IK_BF16 = "ik_llama.cpp q4_1", "ik_llama.cpp bf16"
LLAMA_LARGE, LLAMA_LARGE_Q4_K = "llama.cpp 1b bf16", "llama.cpp 1b q4_k"
LLAMA_SERVED = ("llama-server q4_1", "llama-server bf16", "llama-server q8_0")
VLLM, ZENTORCH = "vllm bf16", "vllm+zentorch bf16"
VLLM_SERVED = ("vllm serve bf16", "vllm+zentorch serve bf16")
OPENVINO, TRANSFORMERS = "openvino bf16", "transformers bf16"
# A loop that reads as many bytes as the weights of each format have.
MEMORY, MEMORY_INT8, MEMORY_Q4_K = "reading bf16", "reading int8", "reading q4_k"
EVERYONE = (LLAMA_GGUF, LLAMA_BF16, LLAMA_Q8, VLLM, ZENTORCH, OPENVINO)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    case: str  # its key
    ours: str
    peers: tuple[str, ...]
    must: float
    aim: float
    metric: str = "tok/s"
    is_bound: bool = False  # at most `must` of the metric, instead of that many times the peer's
    is_most: bool = False  # at most, not at least, that many times the peer's


def _rows() -> Iterator[Row]:
    yield Row("decode1", GGUF, (LLAMA_GGUF,), 1.8, 2.5)
    yield Row("decode1", BF16, (LLAMA_BF16,), 1.5, 2.0)
    yield Row("decode1-1b", LARGE, (LLAMA_LARGE,), 1.0, 1.0)
    yield Row("decode1-1b", LARGE_Q4_K, (LLAMA_LARGE_Q4_K,), 1.0, 1.0)
    yield Row("decode1-1b", LARGE, (MEMORY,), 0.88, 0.95)
    yield Row("decode1-1b", LARGE_INT8, (MEMORY_INT8,), 0.88, 0.95)
    yield Row("decode1-1b", LARGE_Q4_K, (MEMORY_Q4_K,), 0.88, 0.95)
    yield Row("batch64", BF16, (VLLM, ZENTORCH, OPENVINO), 1.5, 1.7)
    yield Row("batch64", GGUF, (LLAMA_GGUF,), 4.0, 7.0)
    yield Row("batch64", GGUF, (VLLM,), 1.3, 2.0)
    for streams in STREAMS:
        yield Row(f"decode{streams}", GGUF, EVERYONE, 1.3, 2.0)
        yield Row(f"decode{streams}", BF16, EVERYONE, 1.3, 2.0)
    for case in ("prefill512", "prefill2048"):
        yield Row(case, GGUF, (LLAMA_GGUF,), 5.0, 8.0)
        yield Row(case, GGUF, (VLLM,), 1.0, 1.5)
        yield Row(case, BF16, (VLLM, ZENTORCH, OPENVINO), 1.3, 1.6)
    for ours in (GGUF, BF16):
        yield Row("shared32", ours, (VLLM,), 1.5, 2.5)
    for streams in HTTP_REQUESTS:
        for ours in SERVED:
            yield Row(f"http{streams}", ours, (*LLAMA_SERVED, *VLLM_SERVED), 1.5, 2.0)
    yield Row("http32", SERVED[0], LLAMA_SERVED[:1], 450, 300, "memory_mb", is_bound=True)
    for ours in (GGUF, BF16):
        peer = LLAMA_GGUF if ours == GGUF else LLAMA_BF16
        yield Row("start", ours, (peer,), 2.0, 1.2, "seconds", is_most=True)
    yield Row("python", GGUF, (), 150, 80, "one_us", is_bound=True)
    yield Row("python", GGUF, (), 5, 3, "further_us", is_bound=True)
    yield Row("batch64", BF16, (TRANSFORMERS,), 4.0, 7.0)
    for case in ("decode1", "decode8", "prefill512", "prefill2048", "batch64"):
        yield Row(case, GGUF, (IK_GGUF,), 1.6, 2.2)
    for case in ("decode1", "prefill512", "batch64"):
        yield Row(case, BF16, (IK_BF16,), 1.0, 1.5)


ROWS = tuple(_rows())
# Measured beside the rows' peers, for the reader: figures without a target.
BESIDE = {
    "decode1": (LLAMA_Q8, VLLM, ZENTORCH, OPENVINO),
    "batch64": (LLAMA_BF16,),
    "prefill512": (LLAMA_BF16,),
    "prefill2048": (LLAMA_BF16,),
    "shared32": (ZENTORCH,),
}

# What the native engine chose for itself is compared with each of these for everything.
TIERS = ("avx2", "avx512vnni", "avx512bf16", "amx", "neon", "neonbf16")
TIER_CASES = ("decode1", "decode8", "decode16", "prefill512", "prefill2048", "batch64", "shared32")
TIER_MUST = 0.97


def forced(ours: str) -> dict[str, str]:
    """Return the name of each engine of ours whose tier is forced, with the tier."""
    return {f"{ours} {tier}": tier for tier in TIERS}


def engines_of(case: str, rows: Iterable[Row] = ROWS) -> set[str]:
    """Return the names of the engines that a case is measured in."""
    named = set(BESIDE.get(case, ()))
    if case in TIER_CASES:
        named.update(*map(forced, (GGUF, BF16)))
    for row in rows:
        if row.case == case:
            named.update((row.ours, *row.peers))
    return named
