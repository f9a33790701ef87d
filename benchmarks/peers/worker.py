"""Runs cases in one engine's own environment: JSON lines in, JSON lines out.

    python worker.py octavo  MODEL [OPTION=VALUE …]
    python worker.py vllm    MODEL [OPTION=VALUE …]
    python worker.py transformers MODEL

The first line out says that the model is loaded; then each line in is
{"prompts": [[id, …], …], "output_tokens": n} and each line out {"seconds": s, "tokens": n}.
Octavo's and vLLM's offline interfaces are the same one, which is why they share this file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[list[list[int]], int], int]


def offline(module: str, model: str, options: dict[str, Any]) -> Run:
    """An engine with `LLM.generate`."""
    engine: Any = importlib.import_module(module)
    if module == "vllm":
        options = {"skip_tokenizer_init": True, **options}
    llm = engine.LLM(model=model, **options)

    def run(prompts: list[list[int]], output_tokens: int) -> int:
        sampling = engine.SamplingParams(
            temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False
        )
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(asked, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def transformers(model: str, options: dict[str, Any]) -> Run:
    """The reference implementation, all requests as one static batch."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(options.get("threads", 2)))
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    def run(prompts: list[list[int]], output_tokens: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            written = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=output_tokens,
                max_new_tokens=output_tokens,
                pad_token_id=0,
            )
        return int(written.shape[0] * (written.shape[1] - ids.shape[1]))

    return run


def value_of(text: str) -> Any:
    """An option's value: JSON where it is some, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    """Load, then serve lines until there are none."""
    # Engines print as they please: they get the error stream, the answers one of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    name, model, *rest = sys.argv[1:]
    options = {key: value_of(value) for key, _, value in (item.partition("=") for item in rest)}
    began = time.perf_counter()
    run = transformers(model, options) if name == "transformers" else offline(name, model, options)
    answers.write(json.dumps({"loaded": time.perf_counter() - began}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        tokens = run(asked["prompts"], asked["output_tokens"])
        answers.write(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}) + "\n")


if __name__ == "__main__":
    main()
