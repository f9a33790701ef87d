"""Measure what a prediction gains where the answer is an edit of it, and costs where it is not.

    python benchmarks/prediction.py MODEL [--tokens 120] [--changed 0,0.1,1] [--rounds 5] [--json]
    python benchmarks/prediction.py DIRECTORY --make-1b      the shape of a 1B Llama in bf16 first

One engine answers a prompt with a drawn text, whose seed is fixed, so that it is always the same.
The prediction is that text, of which a part was changed: tokens replaced, left out and put in,
a few in a row. With all of it changed, nothing can be accepted. Answers with and without the
prediction are made in turns, so that other load on the machine affects both; a ratio is one round's
time without by its time with. The answers must be equal.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from octavo import LLM, SamplingParams  # noqa: E402
from octavo.observe.machine import processor  # noqa: E402

PROMPT = [5 + index * 7 % 251 for index in range(200)]
RUN = 3  # tokens that are changed together


def edited(text: list[int], changed: float, seed: int = 0) -> tuple[int, ...]:
    """Return a text in which so many of the tokens were changed."""
    chance = random.Random(seed)
    if changed >= 1:
        return tuple((token * 31 + 17) % 250 + 5 for token in text)
    found: list[int] = []
    position = 0
    while position < len(text):
        if chance.random() < changed / RUN:
            found += [chance.randrange(5, 250) for _ in range(chance.randrange(2 * RUN + 1))]
            position += RUN
        else:
            found.append(text[position])
            position += 1
    return tuple(found)


def timed(llm: LLM, sampling: SamplingParams) -> tuple[list[int], float, Any]:
    """Answer the prompt; return the tokens, the seconds of decoding, and the statistics."""
    (output,) = llm.generate([PROMPT], sampling, use_tqdm=False)
    stats = output.metrics
    assert stats is not None
    assert stats.finished_at is not None
    assert stats.first_token_at is not None
    return list(output.outputs[0].token_ids), stats.finished_at - stats.first_token_at, stats


def compare(llm: LLM, changed: float, rounds: int, sampling: SamplingParams) -> dict[str, Any]:
    """Compare answers with and without a prediction."""
    expected, _, _ = timed(llm, sampling)
    predicting = replace(sampling, prediction=edited(expected, changed))
    timed(llm, predicting)
    ratios = []
    stats = None
    for number in range(rounds):
        order = (sampling, predicting) if number % 2 else (predicting, sampling)
        seconds = {}
        for each in order:
            tokens, seconds[bool(each.prediction)], found = timed(llm, each)
            if tokens != expected:
                raise SystemExit("the answers differ")
            stats = found if each.prediction else stats
        ratios.append(seconds[False] / seconds[True])
    assert stats is not None
    return {
        "changed": changed,
        "ratio": statistics.median(ratios),
        "range": (min(ratios), max(ratios)),
        "steps": stats.num_decode_steps,
        "drafts": stats.num_drafts,
        "accepted": stats.num_accepted_drafts,
        "tokens": len(expected),
    }


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--make-1b", action="store_true", help="write the model there, if need be")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument(
        "--changed", default=[0.0, 0.1, 1.0], type=lambda text: list(map(float, text.split(",")))
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.make_1b:
        from benchmarks.peers.models import make_random_1b

        make_random_1b(Path(asked.model))
    sampling = SamplingParams(
        temperature=1.0, seed=1, max_tokens=asked.tokens, ignore_eos=True, detokenize=False
    )
    options: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": 2}
    with LLM(asked.model, num_threads=asked.threads, **options) as llm:
        results = [compare(llm, changed, asked.rounds, sampling) for changed in asked.changed]
    name, _ = processor()
    if asked.json:
        print(json.dumps({"processor": name, "model": asked.model, "results": results}, indent=1))
        return
    print(f"{asked.model} on {name}, {asked.rounds} rounds of {asked.tokens} tokens")
    for result in results:
        low, high = result["range"]
        print(
            "{changed:.0%} changed: {ratio:.2f} times as fast".format(**result)
            + f" ({low:.2f} to {high:.2f}); "
            "{steps} steps for {tokens} tokens, {drafts} drafts, {accepted} accepted".format(
                **result
            )
        )


if __name__ == "__main__":
    main()
