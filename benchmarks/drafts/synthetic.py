"""Measure what drafts gain that are right at a given rate, and cost nothing to make.

    python benchmarks/drafts/synthetic.py DIRECTORY --make-1b [--streams 1,4,16] [--rate 0.7]
    python benchmarks/drafts/synthetic.py smollm2 --streams 32 --rate 0 --believed 0.7

What remains is the engine's own part: the rows that verify drafts, and the rule that says how many
are sent. The proposer knows the answers, which the engine has given before without drafts. At each
position its draft is right with the given probability, as vLLM's synthetic acceptance has it, and
it says so to the engine, unless --always is given: then all drafts are sent, whether that pays or
not. With --believed, it says another rate than that at which it is right.

One engine answers with and without drafts in turns, so that other load on the machine affects
both; a ratio is one round's time without by its time with. The answers must be equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from benchmarks.draft_model import NUM_PROMPT, compare, timed  # noqa: E402
from octavo import LLM, SamplingParams  # noqa: E402
from octavo.core.plan import NewSlot  # noqa: E402
from octavo.observe.machine import processor  # noqa: E402
from octavo.runner.speculate import ngram  # noqa: E402
from octavo.runner.speculate.proposer import NOTHING, Proposal, Turn  # noqa: E402


class KnownAnswers:
    """A proposer that has seen the answers; implements `Proposer`."""

    def __init__(self, most: int, rate: float, believed: float | None) -> None:
        self.most = most
        self._rate = rate
        places = () if believed is None else range(1, most + 1)
        self._chances = tuple([(believed or 0.0) ** place for place in places])
        self._drafts: dict[bytes, list[int]] = {}  # by the prompt: of each place of the answer

    def learn(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Take an answer, and choose the places at which its drafts are wrong."""
        is_right = np.random.default_rng(len(self._drafts)).random(len(answer)) < self._rate
        self._drafts[_key(np.array(prompt))] = [
            token if right else token ^ 1 for token, right in zip(answer, is_right, strict=True)
        ]

    def open(self, new: NewSlot) -> None:
        pass

    def free(self, slot: int) -> None:
        pass

    def forget(self) -> None:
        pass

    def propose(self, turns: Sequence[Turn]) -> Sequence[Proposal]:
        return [self._proposal(turn) for turn in turns]

    def _proposal(self, turn: Turn) -> Proposal:
        drafts = self._drafts.get(_key(turn.tokens[:NUM_PROMPT]))
        if drafts is None:
            return NOTHING
        place = len(turn.tokens) - NUM_PROMPT
        found = drafts[place : place + turn.most]
        return Proposal(found, self._chances[: len(found)])


def _key(prompt: Any) -> bytes:
    return prompt.astype(np.int32).tobytes()


def measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare answers with and without drafts, for each number of streams."""
    believed = None if asked.always else asked.rate if asked.believed is None else asked.believed
    proposer = KnownAnswers(asked.drafts, asked.rate, believed)
    sampling = SamplingParams(seed=1, max_tokens=asked.tokens, ignore_eos=True, detokenize=False)
    options: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": max(asked.streams)}
    settings = {"method": "ngram", "num_speculative_tokens": asked.drafts}
    results = []
    with (
        mock.patch.object(ngram, "make", return_value=proposer),
        LLM(asked.model, num_threads=asked.threads, speculative_config=settings, **options) as llm,
    ):
        for streams in asked.streams:
            answers, _, _ = timed(llm, streams, replace(sampling, speculation=False))
            for stream, answer in enumerate(answers):
                proposer.learn(prompt_of(stream), answer)
            results.append(compare(llm, streams, asked.rounds, sampling))
    return results


def prompt_of(stream: int) -> list[int]:
    """Return the prompt that the comparison gives a stream."""
    return [5 + (index * 7 + stream) % 251 for index in range(NUM_PROMPT)]


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--make-1b", action="store_true", help="write the model there, if need be")
    parser.add_argument("--rate", type=float, default=0.7, help="of right drafts, at each place")
    parser.add_argument("--believed", type=float, help="the rate that the engine is given")
    parser.add_argument("--always", action="store_true", help="send all, whether it pays or not")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--streams", default=[1, 4, 16], type=lambda text: list(map(int, text.split(",")))
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.make_1b:
        from benchmarks.peers.models import make_random_1b

        make_random_1b(Path(asked.model))
    results = measure(asked)
    name, _ = processor()
    if asked.json:
        print(json.dumps({"processor": name, "model": asked.model, "results": results}, indent=1))
        return
    print(f"{asked.model} on {name}, {asked.rounds} rounds of {asked.tokens} tokens")
    for result in results:
        low, high = result["range"]
        print(
            "{streams} streams: {ratio:.2f} times as fast".format(**result)
            + f" ({low:.2f} to {high:.2f}); "
            "{tokens_a_second:.1f} tokens/s, {tokens_a_step:.2f} a step, {drafts} drafts, "
            "{accepted} accepted".format(**result)
        )


if __name__ == "__main__":
    main()
