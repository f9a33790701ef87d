"""Measures ranks with whole experts against ranks with a share of each, and the memory of both.

    python -m benchmarks.native.experts DIRECTORY [--ranks 2] [--rounds 5]

DIRECTORY is where a random model of 32 experts a layer in bf16 is made, if there is none. The
engines have the same cores and take turns, so that what else the machine does slows all: figures
are medians of rounds, and ratios are those of a round to `-tp` alone in it. "one token" are prompts
that repeat one token, whose rows all choose the same experts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from tests.quantize.made import write_model

STREAMS, PROMPT = 8, 192
MODEL: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 384,
    "max_position_embeddings": 1024,
}
COPIES = {"enable_eplb": True, "eplb_config": {"num_redundant_experts": 4, "step_interval": 8}}


def generate(count: int, length: int, tokens: int, spread: int) -> Callable[[LLM], float]:
    """Return what measures so many requests: the tokens in a second, of prompts or of answers."""
    prompts = [[5 + spread * (7 * i + 13 * j) % 200 for j in range(length)] for i in range(count)]
    settings = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)

    def run(llm: LLM) -> float:
        began = time.monotonic()
        answers = llm.generate(prompts, settings, use_tqdm=False)
        taken = time.monotonic() - began
        texts.append([list(each.outputs[0].token_ids) for each in answers])
        return count * (length if tokens == 1 else tokens) / taken

    texts: list[list[list[int]]] = []
    run.texts = texts  # type: ignore[attr-defined]
    return run


def memory_of(llm: LLM) -> list[str]:
    """Return the own memory of each further rank, and its part of the shared one, in MiB."""
    group: Any = llm._model.engine.ranks
    found = []
    for each in group._followers:
        pid = each.process.pid
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
        own, shared = (int(sizes[name]) // 1024 for name in ("Pss_Anon", "Pss_Shmem"))
        found.append(f"{own} + {shared}")
    return found


def main() -> None:
    """Measure all engines in turns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if not (asked.directory / "config.json").exists():
        write_model(asked.directory, "Qwen3MoeForCausalLM", **MODEL)
    settings: dict[str, Any] = {
        "enable_prefix_caching": False,
        "max_num_seqs": STREAMS,
        "max_model_len": 1024,
        "num_gpu_blocks_override": 1200,
        "num_threads": 1,
        "tensor_parallel_size": asked.ranks,
    }
    options: dict[str, dict[str, Any]] = {
        "-tp": {},
        "-tp -ep": {"enable_expert_parallel": True},
        "-tp -ep, 4 copies": {"enable_expert_parallel": True, **COPIES},
    }
    engines = {
        name: LLM(str(asked.directory), **settings, **more) for name, more in options.items()
    }
    cases = {
        "1 stream": generate(1, 16, 16, 1),
        f"{STREAMS} streams": generate(STREAMS, 16, 12, 1),
        f"prompt of {PROMPT}": generate(1, PROMPT, 1, 1),
        f"{PROMPT} × one token": generate(1, PROMPT, 1, 0),
    }
    for case, run in cases.items():
        for _ in range(2):  # experts in use are copied meanwhile
            for llm in engines.values():
                run(llm)
        found = [{name: run(llm) for name, llm in engines.items()} for _ in range(asked.rounds)]
        texts = run.texts  # type: ignore[attr-defined]
        assert all(each == texts[0] for each in texts), "other tokens"
        for name in engines:
            ratios = [each[name] / each["-tp"] for each in found]
            print(
                f"{case:20} {name:18} {statistics.median(each[name] for each in found):8.1f} "
                f"tokens/s: {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
                f"{max(ratios):.3f})",
                flush=True,
            )
    for name, llm in engines.items():
        weights: Any = llm._model.engine.facts.memory_bytes
        print(
            f"{name:18} weights of all ranks: {weights['weights'] >> 20} MiB; of each further",
            end="",
        )
        print(
            f" rank, own + its part of shared memory: {', '.join(memory_of(llm))} MiB", flush=True
        )
        llm.close()


if __name__ == "__main__":
    main()
