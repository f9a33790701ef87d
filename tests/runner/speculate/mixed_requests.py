"""Mixed requests whose texts must be equal with and without speculation.

    python -m tests.runner.speculate.mixed_requests [--requests 1000] [--way suffix] [--seed 0]

The tiny model answers all of them in one engine without drafts, and in one for each way to draft:
n-grams, suffixes, a second model, four that read hidden states, a class that fails after a while,
and predictions that are right or were edited. Blocks and slots are few, so sequences are preempted,
and prompts share prefixes. Some have logits processors, of which some fail after a few tokens; some
have a grammar, some ask for a vector. Tokens, texts, finish reasons, errors, vectors and
log-probabilities must be equal.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file, save_file

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.api.outputs import RequestOutput
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.draft_counts import DraftCounts
from octavo.core.pooling import POOLINGS, Pooling
from octavo.core.sequence import Sequence as CoreSequence
from octavo.core.stats import EngineStats
from tests.api.tiny import make_model
from tests.core.ahead_trees import trees_by
from tests.runner.draw_samplers import draw_samplers
from tests.runner.speculate.fitted_heads import FITTED, fit_own_layer
from tests.runner.speculate.mtp_files import add_mimo_layer

VOCABULARY = 300
NUM_SHARED = 6  # prefixes that prompts have in common
CYCLE = (20, 21, 22)
ENGINE: dict[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks_override": 28,
    "max_num_seqs": 12,
    "max_num_batched_tokens": 48,
    "seed": 5,
}
# The settings of each way to draft; those of predictions are the default ones.
WAYS: dict[str, dict[str, Any] | None] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "suffix_decoding_min_token_prob": 0.0},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 4},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 4},
    "eagle": {"method": "eagle", "num_speculative_tokens": 4},
    "medusa": {"method": "medusa", "num_speculative_tokens": 4},
    "dflash": {"method": "dflash", "num_speculative_tokens": 4},
    "mtp": {"method": "mtp", "num_speculative_tokens": 4},
    "custom_class": {
        "method": "custom_class",
        "model": "tests.engine.own_classes.proposers:DyingLate",
    },
    "eagle3 trees": {"method": "eagle3", "num_speculative_tokens": 4, "draft_candidates": 3},
    "medusa trees": {"method": "medusa", "num_speculative_tokens": 4, "draft_candidates": 3},
    "dflash trees": {"method": "dflash", "num_speculative_tokens": 4, "draft_candidates": 3},
    "draft_model trees": {"num_speculative_tokens": 4, "draft_candidates": 2},
    "prediction": None,
}
CALM = 0.3  # the share of what the model's layers add that is left
NOISE = 0.03  # of the draft model's weights, so that it is right in part
SHAPES: tuple[dict[str, Any], ...] = (
    {"regex": "([a-z]{2,4} ){3}end"},
    {"choice": ["the quick", "the slow", "a"]},
    {"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 2}},
)
Case = tuple[list[int], SamplingParams]


def make_cases(count: int, seed: int) -> list[Case]:
    """Make prompts, most with repetitions, and parameters of every kind."""
    chance = random.Random(seed)
    shared = [_text(chance, 24) for _ in range(NUM_SHARED)]
    return [(_prompt(chance, shared), _sampling(chance)) for _ in range(count)]


def _text(chance: random.Random, most: int) -> list[int]:
    return [chance.randrange(2, VOCABULARY) for _ in range(chance.randrange(2, most))]


def _prompt(chance: random.Random, shared: Sequence[list[int]]) -> list[int]:
    first = chance.choice(shared) if chance.random() < 0.6 else []
    phrase = _text(chance, 8)
    return [*first, *phrase * chance.randrange(1, 4), *phrase[: chance.randrange(len(phrase))], 7]


def even_only(prompt: Any, output: Any, row: Any) -> Any:
    """Forbid every other token."""
    row[1::2] = -np.inf
    return row


def raise_later(prompt: Any, output: Any, row: Any) -> Any:
    """Raise an error at the seventh token."""
    if len(output) > 5:
        raise ValueError("six tokens are enough")
    return row


def forbid_later(prompt: Any, output: Any, row: Any) -> Any:
    """Leave no token at the fifth place."""
    if len(output) > 3:
        row[:] = -np.inf
    return row


def cycle_then_raise(prompt: Any, output: Any, row: Any) -> Any:
    """Force a cycle of three tokens, which drafts foresee, and raise an error at the seventh."""
    row[:] = -np.inf
    row[CYCLE[len(output) % len(CYCLE)]] = 0.0
    return raise_later(prompt, output, row)


def _cycle(chance: random.Random) -> SamplingParams:
    """Make parameters that fail in the middle of drafts, or end there, before the failure."""
    stops = (CYCLE[-1],) if chance.random() < 0.5 else ()
    return SamplingParams(
        temperature=0,
        ignore_eos=True,
        max_tokens=chance.choice([4, 6, 20]),
        min_tokens=4,
        stop_token_ids=stops,
        logprobs=chance.choice([None, 1]),
        logits_processors=(cycle_then_raise,),
    )


def _sampling(chance: random.Random) -> SamplingParams:
    if chance.random() < 0.1:
        return _cycle(chance)
    if chance.random() < 0.08:
        return SamplingParams(max_tokens=1, pooling=Pooling(chance.choice(POOLINGS[:3])))
    fields: dict[str, Any] = {"max_tokens": chance.randrange(1, 48), "seed": chance.randrange(99)}
    fields["temperature"] = chance.choice([0.0, 0.0, 0.1, 0.3, 1.0, 1.5])
    fields["ignore_eos"] = chance.random() < 0.5
    if chance.random() < 0.3:
        fields |= {"top_p": 0.9, "top_k": 20, "min_p": chance.choice([0.0, 0.05])}
    if chance.random() < 0.25:
        fields |= {
            "repetition_penalty": chance.choice([0.7, 1.2]),
            "presence_penalty": chance.choice([0.0, -0.5, 0.8]),
            "frequency_penalty": chance.choice([0.0, 0.3]),
        }
    apart = random.Random(fields["seed"])
    if apart.random() < 0.3:
        fields["sampler_options"] = draw_samplers(apart)
    if chance.random() < 0.2:
        fields["stop"] = [chance.choice(["a", "th", "og", "e "])]
    if chance.random() < 0.2:
        fields |= {"stop_token_ids": [chance.randrange(VOCABULARY) for _ in range(8)]}
        fields["min_tokens"] = chance.randrange(min(9, fields["max_tokens"] + 1))
    if chance.random() < 0.2:
        fields["logit_bias"] = {chance.randrange(VOCABULARY): chance.choice([-9.0, 3.0])}
    if chance.random() < 0.1:
        fields["allowed_token_ids"] = range(20, 200)
    if chance.random() < 0.1:
        fields["bad_words"] = ["the"]
    if chance.random() < 0.2:
        fields["logprobs"] = chance.choice([0, 3])
    if chance.random() < 0.1:
        fields["prompt_logprobs"] = 2
    if fields["temperature"] and chance.random() < 0.2:
        fields["n"] = 3
    if chance.random() < 0.12:
        fields["structured_outputs"] = StructuredOutputsParams(**chance.choice(SHAPES))
        for name in ("allowed_token_ids", "bad_words", "stop", "logit_bias"):
            fields.pop(name, None)
        return SamplingParams(**fields)
    if chance.random() < 0.05:
        fields["speculation"] = False
    if chance.random() < 0.25:
        fields["logits_processors"] = (chance.choice([even_only, raise_later, forbid_later]),)
    return SamplingParams(**fields)


def with_predictions(cases: Sequence[Case], found: Sequence[Any], seed: int) -> list[Case]:
    """Return requests with predictions: what they answer without, as it is or edited."""
    chance = random.Random(seed)
    predicting = []
    for (prompt, sampling), answer in zip(cases, found, strict=True):
        text = [*answer[2][0]] if len(answer) > 2 else []
        for _ in range(chance.choice((0, 0, 1, 3))):
            place = chance.randrange(len(text) + 1)
            text[place : place + chance.randrange(4)] = _text(chance, 4)[: chance.randrange(4)]
        if chance.random() < 0.1:
            text = _text(chance, 60)
        predicting.append((prompt, replace(sampling, prediction=tuple(text[:120]))))
    return predicting


def answers(llm: LLM, cases: Sequence[Case]) -> list[Any]:
    """Return what a user sees of each request's answers, log-probabilities included."""
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt, _ in cases],
        [sampling for _, sampling in cases],
        use_tqdm=False,
    )
    return [(output.prompt_logprobs, output.hidden_state, *_said(output)) for output in outputs]


def _said(output: RequestOutput) -> list[Any]:
    return [
        (
            each.token_ids,
            each.text,
            each.finish_reason,
            each.stop_reason,
            each.logprobs,
            each.error,
        )
        for each in output.outputs
    ]


def summary(found: Sequence[Any]) -> tuple[int, int]:
    """Return how many requests failed after they had tokens, and how many gave a vector."""
    num_failed = sum(any(said[0] and said[-1] for said in answer[2:]) for answer in found)
    return num_failed, sum(answer[1] is not None for answer in found)


@contextmanager
def engine(directory: Path, backend: str, way: str | None) -> Iterator[LLM]:
    """Make an engine with a way to draft, or without any.

    Drafts are sent wherever there are some, so that many are verified, right and wrong. A draft
    model proposes now more, now less, and now nothing for a while. With every second way, steps are
    planned ahead where they may be.
    """
    is_ahead = way is not None and [*WAYS].index(way) % 2 == 1
    config = {"method": "off"} if way is None else WAYS[way]
    drafter = way.removesuffix(" trees") if way else None
    if config is not None and drafter == "draft_model":
        config = {**config, "model": str(drafter_of(directory, NOISE))}
    if config is not None and drafter in FITTED:
        files = directory / drafter
        fitted = files if files.exists() else FITTED[drafter](directory, files)
        config = {**config, "model": str(fitted)}
    options = {**ENGINE, "backend": backend, "dtype": "float32", "speculative_config": config}
    options["async_scheduling"] = is_ahead
    with (
        mock.patch.object(DraftCounts, "_costs", return_value=None),
        mock.patch.object(AheadCounts, "_trees", trees_by(varied_counts)),
        mock.patch.object(AheadCounts, "learn"),
        LLM(str(directory), **options) as made,
    ):
        yield made


def varied_counts(
    self: AheadCounts, sampling: list[CoreSequence], num_rows: int, num_read: int
) -> list[int]:
    """Return how much is proposed for each sequence: nothing in some parts of each text."""
    wanted = [(len(each.tokens) + 3 * each.slot) // 5 % 6 for each in sampling]
    return [min(each % 5, self._useful(one)) for each, one in zip(wanted, sampling, strict=True)]


def make_calm_model(directory: Path) -> Path:
    """Write a tiny model with layers that change little, so that a drafter can foresee them.

    Its files have a layer for drafts too.
    """
    path = make_model(directory) / "model.safetensors"
    weights = load_file(path)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= np.float32(CALM)
    save_file(weights, path)
    return fit_own_layer(add_mimo_layer(directory))


def drafter_of(directory: Path, noise: float) -> Path:
    """Write a model beside a tiny one, whose weights are the same but for some noise."""
    made = directory / "drafter"
    if made.exists():
        return made
    shutil.copytree(directory, made)
    generator = np.random.default_rng(11)
    weights = load_file(made / "model.safetensors")
    for name, values in weights.items():
        changed = values * (1 + noise * generator.standard_normal(values.shape))
        weights[name] = changed.astype(np.float32)
    save_file(weights, made / "model.safetensors")
    return made


def answers_by(
    way: str, directory: Path, backend: str, cases: Sequence[Case], plain: Sequence[Any], seed: int
) -> tuple[list[Any], EngineStats]:
    """Return the answers with a way to draft, and the statistics of its engine."""
    if way == "prediction":
        cases = with_predictions(cases, plain, seed)
    with engine(directory, backend, way) as llm:
        return answers(llm, cases), stats_of(llm)


def stats_of(llm: LLM) -> EngineStats:
    """Return the statistics of an engine's core."""
    return llm._runner._model.core.scheduler.stats


def main() -> int:
    """Compare the answers, and print what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--backend", choices=("native", "torch"), default="native")
    parser.add_argument("--way", choices=WAYS, action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    cases = make_cases(asked.requests, asked.seed)
    num_unequal = 0
    with tempfile.TemporaryDirectory() as name:
        directory = make_calm_model(Path(name))
        with engine(directory, asked.backend, None) as llm:
            plain = answers(llm, cases)
        for way in asked.way or WAYS:
            found, stats = answers_by(way, directory, asked.backend, cases, plain, asked.seed)
            unequal = [
                index
                for index, pair in enumerate(zip(plain, found, strict=True))
                if pair[0] != pair[1]
            ]
            num_unequal += len(unequal)
            print(
                f"{way}: {len(cases)} requests on {asked.backend}: {len(unequal)} unequal "
                f"{unequal[:9]}; {stats.num_drafts} drafts, {stats.num_accepted_drafts} accepted; "
                f"{stats.num_preemptions} preemptions, {stats.num_cached_tokens} cached tokens",
                flush=True,
            )
    return 1 if num_unequal else 0


if __name__ == "__main__":
    sys.exit(main())
