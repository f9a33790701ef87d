"""Measure the speed of decoding with each sampling rule, as a ratio to decoding without it.

    python benchmarks/sampling_rules.py                  1 and 32 streams of SmolLM2
    python benchmarks/sampling_rules.py --rounds 21      more rounds
    python benchmarks/sampling_rules.py --json           one JSON object
    python benchmarks/sampling_rules.py --processor-time one thread and its processor time, which
                                                         other load on the machine disturbs less

Every round generates the same number of tokens once with each rule, in another order each time, so
that other load on the machine affects all of them. A ratio is computed within each round; its
median and quartiles are reported. Rules that draw at random are compared with plain random draws,
the others with greedy decoding.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

WARM: dict[str, Any] = {"temperature": 0.8, "seed": 7}
GREEDY: dict[str, Any] = {"temperature": 0.0}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, the parameters that it is compared with, and the least ratio."""

    parameters: dict[str, Any]
    base: str = "greedy"
    aim: float = 0.95


BASES = {"greedy": GREEDY, "warm": WARM}
RULES = {
    "repetition_penalty": Rule({"repetition_penalty": 1.1}),
    "presence_penalty": Rule({"presence_penalty": 0.5}),
    "frequency_penalty": Rule({"frequency_penalty": 0.5}),
    "logit_bias": Rule({"logit_bias": dict.fromkeys(range(100, 400, 3), 1.5)}),
    "bad_words": Rule({"bad_words_token_ids": [[28], [30, 2], [198, 198]]}),
    "allowed_token_ids": Rule({"allowed_token_ids": list(range(100, 5000))}),
    "min_p": Rule({"min_p": 0.05}, "warm"),
    "top_k and top_p": Rule({"top_k": 40, "top_p": 0.9}, "warm"),
    "typical_p": Rule({"sampler_options": {"typical_p": 0.9}}, "warm"),
    "top_n_sigma": Rule({"sampler_options": {"top_n_sigma": 1.0}}, "warm"),
    "xtc": Rule({"sampler_options": {"xtc_probability": 0.5}}, "warm"),
    "dynatemp_range": Rule({"sampler_options": {"dynatemp_range": 0.5}}, "warm"),
    "mirostat": Rule({"sampler_options": {"mirostat": 2}}, "warm"),
    "dry": Rule({"sampler_options": {"dry_multiplier": 0.8}}),
    "repeat_last_n": Rule({"sampler_options": {"repeat_last_n": 64}, "repetition_penalty": 1.1}),
    "top_k first": Rule(
        {"sampler_options": {"samplers": ["top_k", "top_p", "temperature"]}, "top_k": 40}, "warm"
    ),
    "logprobs=5": Rule({"logprobs": 5}, aim=0.9),
}


class Decoder:
    """An engine that decodes rounds of requests."""

    def __init__(
        self, model: str, num_streams: int, num_tokens: int, by_processor_time: bool
    ) -> None:
        from octavo import LLM

        threads = 1 if by_processor_time else 0
        self._llm = LLM(model, max_model_len=1024, max_num_seqs=num_streams, num_threads=threads)
        self._clock = time.process_time if by_processor_time else time.perf_counter
        self._num_tokens = num_tokens
        chance = random.Random(5)
        self._prompts = [
            {"prompt_token_ids": [chance.randrange(1000, 20_000) for _ in range(16)]}
            for _ in range(num_streams)
        ]

    def seconds(self, parameters: dict[str, Any]) -> float:
        """Decode with these parameters once; return the time."""
        from octavo import SamplingParams

        sampling = SamplingParams(max_tokens=self._num_tokens, ignore_eos=True, **parameters)
        began = self._clock()
        self._llm.generate(self._prompts, sampling, use_tqdm=False)
        return self._clock() - began


def measure(decoder: Decoder, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the ratios of each rule, and the milliseconds a step of each base."""
    ways = {name: rule.parameters | BASES[rule.base] for name, rule in RULES.items()} | BASES
    for parameters in ways.values():
        decoder.seconds(parameters)
    figures: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for round_number in range(rounds):
        random.Random(round_number).shuffle(order)
        seconds = {name: decoder.seconds(ways[name]) for name in order}
        for name, rule in RULES.items():
            figures[name].append(seconds[rule.base] / seconds[name])
        for name in BASES:
            figures[name].append(seconds[name] / num_tokens * 1000)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=64, help="of each stream in a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor-time", action="store_true", help="of one thread")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    asked = parser.parse_args()
    found: dict[int, dict[str, list[float]]] = {}
    for num_streams in asked.streams:
        decoder = Decoder(asked.model, num_streams, asked.tokens, asked.processor_time)
        found[num_streams] = measure(decoder, asked.tokens, asked.rounds)
    if asked.json:
        print(json.dumps({"machine": platform.processor(), "figures": found}))
        return
    for num_streams, figures in found.items():
        print(f"{num_streams} streams")
        for name, values in figures.items():
            low, middle, high = statistics.quantiles(values, n=4)
            if name in BASES:
                print(f"  {name:20} {middle:7.2f} ms a step ({low:.2f} to {high:.2f})")
                continue
            verdict = "" if middle >= RULES[name].aim else f"  below {RULES[name].aim}"
            print(f"  {name:20} {middle:7.3f} ({low:.3f} to {high:.3f}){verdict}")


if __name__ == "__main__":
    main()
