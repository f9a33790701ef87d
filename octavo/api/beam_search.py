"""Beam search: the most probable continuations, with several kept at each step.

Each beam is extended by one token at a time, with the log-probabilities of the likeliest tokens;
the best of all candidates are the next beams. A beam's prompt is its parent's prompt and one more
token, so the prefix cache holds all its full blocks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from octavo.api.continuation import Continuation
from octavo.api.outputs import CompletionOutput, RequestError, RequestOutput
from octavo.api.prompts import Input
from octavo.api.reading import Reading
from octavo.api.text_model import TextModel
from octavo.core.request import FinishReason, TokenEvent
from octavo.core.sampling_params import RequestOutputKind, SamplingParams


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """The number of beams, their length, and the weight of the length in the score."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0  # scores are divided by length to this power
    early_stopping: bool = False  # the search ends once as many beams have ended as it follows

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


class Beam(Struct, frozen=True):
    """A continuation of the prompt, and the sum of its tokens' log-probabilities."""

    tokens: tuple[int, ...]
    logprob: float
    stop_token: int | None = None  # with which it ended; None: it could be longer


class _Candidate(Struct, frozen=True):
    """A beam and one more token; most candidates are never kept."""

    parent: Beam
    token: int
    logprob: float


class BeamSearch:
    """The search for one prompt: `inputs`, `take` each output, `advance`, until no inputs are left.

    Each input is a request of its own, with the parameters `step`.
    """

    def __init__(
        self,
        prompt: Input,
        parameters: BeamSearchParams,
        model: TextModel,
        stop_token_ids: Iterable[int] = (),
    ) -> None:
        self._prompt = prompt
        self._parameters = parameters
        self._width = parameters.beam_width
        self.step = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=min(2 * self._width, model.facts.vocabulary),
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._stops = frozenset(stop_token_ids)
        self._ends = self._stops
        if not parameters.ignore_eos:
            self._ends |= frozenset(model.end_ids)
        # At least one: if there is no room, the step itself is refused.
        room = max(model.facts.longest_tokens - len(prompt.token_ids), 1)
        self._num_left = min(parameters.max_tokens, room)
        self._living = [Beam((), 0.0)]
        self._done: list[Beam] = []
        self._candidates: list[_Candidate] = []

    def inputs(self) -> list[Input]:
        """Return the prompts of the next step, one for each beam; none: the search is over."""
        is_early = self._parameters.early_stopping and len(self._done) >= self._width
        if not self._num_left or is_early:
            return []
        return [self._input(beam) for beam in self._living]

    def take(self, index: int, output: RequestOutput) -> None:
        """Add what the output for one of the inputs says to the candidates."""
        beam, logprobs = self._living[index], output.outputs[0].logprobs
        assert logprobs
        for token, entry in logprobs[0].items():
            self._candidates.append(_Candidate(beam, token, beam.logprob + entry.logprob))

    def advance(self) -> None:
        """Make the best candidates the next beams, when all outputs were taken."""
        length = float(len(self._living[0].tokens) + 1) ** self._parameters.length_penalty
        self._num_left -= 1

        def rank(each: _Candidate) -> tuple[float, tuple[int, ...], int]:
            return -each.logprob / length, each.parent.tokens, each.token

        ended = [each for each in self._candidates if each.token in self._ends]
        going = [each for each in self._candidates if each.token not in self._ends]
        self._candidates = []
        new = [_extended(each, each.token) for each in heapq.nsmallest(self._width, ended, rank)]
        # No more than can be among the best at the end.
        self._done = heapq.nsmallest(self._width, [*self._done, *new], self._rank)
        self._living = [_extended(each) for each in heapq.nsmallest(self._width, going, rank)]

    def best(self) -> list[Beam]:
        """Return the best beams, best first, whether they have ended or not."""
        return heapq.nsmallest(self._width, [*self._done, *self._living], self._rank)

    def written(
        self,
        index: int,
        beam: Beam,
        model: TextModel,
        sampling: SamplingParams,
        reading: Reading | None = None,
    ) -> CompletionOutput:
        """Return a beam as an answer: its text, as `sampling` says, and how it has ended."""
        prompt = self._prompt.token_ids
        made = Continuation(index, prompt, sampling, model.tokenizer, reading)
        stop = beam.stop_token if beam.stop_token in self._stops else None
        reason: FinishReason = "length" if beam.stop_token is None else "stop"
        made.push(TokenEvent("", 0, beam.tokens, reason, stop))
        output = made.everything()
        output.cumulative_logprob = beam.logprob
        return output

    def _rank(self, beam: Beam) -> tuple[float, tuple[int, ...]]:
        length: float = max(len(beam.tokens), 1) ** self._parameters.length_penalty
        return -beam.logprob / length, beam.tokens

    def _input(self, beam: Beam) -> Input:
        token_ids = self._prompt.token_ids[:]
        token_ids.extend(beam.tokens)
        return Input(None, token_ids)


def _extended(candidate: _Candidate, stop_token: int | None = None) -> Beam:
    tokens = (*candidate.parent.tokens, candidate.token)
    return Beam(tokens, candidate.logprob, stop_token)
