"""Beam search: the most probable continuations, with several kept at each step.

Each beam is extended by one token at a time, with the log-probabilities of the likeliest tokens;
the best of all candidates are the next beams. A beam's prompt is its parent's prompt and one more
token, so the prefix cache holds all its full blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from octavo.api.outputs import CompletionOutput, RequestError, RequestOutput
from octavo.api.prompts import Input
from octavo.api.text_model import TextModel
from octavo.core.sampling_params import SamplingParams

Run = Callable[[Sequence[Input], SamplingParams], list[RequestOutput]]


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """The number of beams, their length, and the weight of the length in the score."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0  # scores are divided by length to this power

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise RequestError(f"{name}={value!r} must be a whole number")
        penalty: Any = self.length_penalty
        if not isinstance(penalty, int | float) or not math.isfinite(penalty):
            raise RequestError(f"length_penalty={penalty!r} must be a finite number")
        if not 1 <= self.beam_width <= 1024:
            raise RequestError(f"beam_width={self.beam_width} must be between 1 and 1024")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens={self.max_tokens} must be at least 1")


class _Beam(Struct, frozen=True):
    tokens: tuple[int, ...]
    logprob: float
    ended: bool = False

    def score(self, penalty: float) -> float:
        length: float = max(len(self.tokens), 1) ** penalty
        return self.logprob / length


def search(
    prompt: Input, parameters: BeamSearchParams, model: TextModel, run: Run
) -> list[CompletionOutput]:
    """Return the best beams, best first, without their texts."""
    width = parameters.beam_width
    step = SamplingParams(
        max_tokens=1, temperature=0.0, logprobs=2 * width, detokenize=False, ignore_eos=True
    )
    living, done = [_Beam((), 0.0)], list[_Beam]()
    room = max(model.facts.longest_tokens - len(prompt.token_ids), 1)  # if none, `run` refuses it
    for _ in range(min(parameters.max_tokens, room)):
        inputs = [_input(prompt, beam) for beam in living]
        candidates = []
        for beam, output in zip(living, run(inputs, step), strict=True):
            logprobs = output.outputs[0].logprobs
            assert logprobs
            for token, entry in logprobs[0].items():
                ended = token in model.end_ids and not parameters.ignore_eos
                total = beam.logprob + entry.logprob
                candidates.append(_Beam((*beam.tokens, token), total, ended))
        candidates.sort(key=lambda beam: (-beam.score(parameters.length_penalty), beam.tokens))
        done.extend(beam for beam in candidates if beam.ended)
        living = [beam for beam in candidates if not beam.ended][:width]
    ranked = sorted(
        (*done, *living), key=lambda beam: (-beam.score(parameters.length_penalty), beam.tokens)
    )
    return [
        CompletionOutput(
            index,
            token_ids=list(beam.tokens),
            cumulative_logprob=beam.logprob,
            finish_reason="stop" if beam.ended else "length",
        )
        for index, beam in enumerate(ranked[:width])
    ]


def _input(prompt: Input, beam: _Beam) -> Input:
    token_ids = prompt.token_ids[:]
    token_ids.extend(beam.tokens)
    return Input(None, token_ids)
