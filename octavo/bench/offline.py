"""Measures an engine without a server: how much it answers a second, how long one batch takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.bench.load.asked import Asked
from octavo.core.config import ConfigError
from octavo.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.api.adapters import LoRARequest
    from octavo.api.llm import LLM
    from octavo.api.outputs import RequestOutput

PERCENTILES = (10, 25, 50, 75, 90, 99)
_WARM_UP_TOKENS = 16  # of a prompt and of its answer, before anything is measured


@dataclass(frozen=True, slots=True)
class Throughput:
    """The time of all requests together, and what was done in it."""

    elapsed_time: float
    num_requests: int
    num_failed: int
    total_input_tokens: int
    total_output_tokens: int
    errors: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the figures under vLLM's names, and the tokens of prompts and answers apart."""
        tokens = self.total_input_tokens + self.total_output_tokens
        return {
            "elapsed_time": self.elapsed_time,
            "num_requests": self.num_requests,
            "num_failed": self.num_failed,
            "total_num_tokens": tokens,
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "requests_per_second": self.num_requests / self.elapsed_time,
            "tokens_per_second": tokens / self.elapsed_time,
            "output_tokens_per_second": self.total_output_tokens / self.elapsed_time,
        }


def throughput(
    llm: LLM,
    asked: Sequence[Asked],
    sampling: SamplingParams,
    adapters: Sequence[LoRARequest] = (),
    *,
    shows_progress: bool = False,
) -> Throughput:
    """Answer all requests together, as fast as the engine can, and return the figures."""
    check_lengths(llm, asked)
    warm_up(llm)
    own = [replace(sampling, max_tokens=each.max_tokens) for each in asked]
    named = {each.lora_name: each for each in adapters}
    loras = [named.get(each.model) for each in asked] if named else None
    prompts: list[Any] = [each.prompt for each in asked]
    ask = llm.chat if _are_chats(asked) else llm.generate
    began = time.perf_counter()
    outputs = ask(prompts, own, use_tqdm=shows_progress, lora_request=loras)
    seconds = time.perf_counter() - began
    return _counted(outputs, seconds)


def _counted(outputs: Sequence[RequestOutput], seconds: float) -> Throughput:
    errors = [
        next((each.error for each in output.outputs if each.error), None) for output in outputs
    ]
    done = [output for output, error in zip(outputs, errors, strict=True) if error is None]
    return Throughput(
        max(seconds, 1e-9),
        len(done),
        len(outputs) - len(done),
        sum(len(each.prompt_ids) for each in done),
        sum(len(one.token_ids) for each in done for one in each.outputs),
        tuple(error for error in errors if error is not None),
    )


def _are_chats(asked: Sequence[Asked]) -> bool:
    """Return whether prompts are conversations; raise ConfigError if only some are."""
    kinds = {isinstance(each.prompt, list) and isinstance(each.prompt[0], dict) for each in asked}
    if len(kinds) > 1:
        raise ConfigError(
            "some of the prompts have `messages`, and others a `prompt`; measure each kind in a "
            "file of its own"
        )
    return kinds == {True}


def check_lengths(llm: LLM, asked: Sequence[Asked]) -> None:
    """Raise ConfigError for token ids that are, with their answer, more than the model takes."""
    most = llm.model.facts.max_model_len
    for number, each in enumerate(asked, 1):
        size = len(each.prompt) if isinstance(each.prompt, list) else 0
        if size + each.max_tokens > most:
            raise ConfigError(
                f"request {number} has {size:,} tokens and {each.max_tokens:,} of its answer, more "
                f"than max_model_len={most:,}; ask for shorter ones: length_scale makes all of "
                "them shorter"
            )


def token_choices(llm: LLM) -> list[int]:
    """Return the token ids of which random prompts are made: all that stand for a text."""
    tokenizer = llm.model.tokenizer
    special = {*tokenizer.special_ids, *tokenizer.added_tokens, *llm.model.end_ids}
    ids = range(llm.model.facts.vocabulary)
    found = [each for each in ids if each not in special and tokenizer.id_to_token(each)]
    if not found:
        raise ConfigError("the model's tokenizer has no tokens of which prompts could be made")
    return found


def warm_up(llm: LLM) -> None:
    """Answer a short request, so that nothing that is measured comes first."""
    chance = random.Random("warm-up")
    most = max(1, min(_WARM_UP_TOKENS, llm.model.facts.max_model_len // 2))
    prompt = chance.choices(token_choices(llm), k=most)
    sampling = SamplingParams(max_tokens=most, ignore_eos=True)
    llm.generate([prompt], sampling, use_tqdm=False)
    llm.reset_prefix_cache()


def latencies(
    llm: LLM,
    asked: Sequence[Asked],
    sampling: SamplingParams,
    num_warm_up: int,
    count: int,
    watch: Callable[[int], None] = lambda done: None,
) -> list[float]:
    """Answer the same batch again and again, and return how long each turn took.

    When it is interrupted behind the first turn that counts, it returns those that are complete.
    """
    check_lengths(llm, asked)
    own = [replace(sampling, max_tokens=each.max_tokens) for each in asked]
    prompts: list[Any] = [each.prompt for each in asked]
    found: list[float] = []
    for turn in range(num_warm_up + count):
        try:
            began = time.perf_counter()
            outputs = llm.generate(prompts, own, use_tqdm=False)
            seconds = time.perf_counter() - began
        except KeyboardInterrupt:
            if found:
                return found
            raise
        if errors := _counted(outputs, seconds).errors:
            raise ConfigError(f"a request of the batch has failed: {errors[0]}")
        if turn >= num_warm_up:
            found.append(seconds)
        watch(turn + 1)
    return found


def latency_figures(found: Sequence[float]) -> dict[str, Any]:
    """Return the figures of the turns, in seconds, under vLLM's names."""
    percentiles = np.percentile(found, PERCENTILES).tolist()
    return {
        "avg_latency": float(np.mean(found)),
        "std_latency": float(np.std(found)),
        "latencies": list(found),
        "percentiles": {str(at): each for at, each in zip(PERCENTILES, percentiles, strict=True)},
    }
