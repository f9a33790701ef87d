"""Steps that were submitted to the native engine, and the slow path of user-written processors."""

from __future__ import annotations

from typing import Any

from octavo.backends.base import Ints
from octavo.backends.native import _native
from octavo.backends.processors import SamplingError, call_processor
from octavo.backends.step import (
    NO_TOKEN_LEFT,
    NOT_FINITE,
    Draws,
    Processor,
    RowLogprobs,
    StepOutput,
)

_MESSAGES = {_native.NOT_FINITE: NOT_FINITE, _native.NO_TOKEN_LEFT: NO_TOKEN_LEFT}


class NativePending:
    """A step that the engine computes; implements `octavo.backends.step.Pending`."""

    __slots__ = ("_step",)

    def __init__(self, step: _native.SubmittedStep) -> None:
        self._step = step

    def done(self) -> bool:
        return self._step.done()

    def collect(self) -> StepOutput:
        step = self._step
        step.wait()
        tokens, rest = step.take()
        return _output(tokens, rest)


class ProcessedPending:
    """A step in which users' processors change rows, which only Python can call.

    The engine draws for all other slots and stops. The next step may need the tokens of these, so
    that the backend finishes this one before it submits another.
    """

    __slots__ = ("_draws", "_failures", "_is_finished", "_processed", "_step")

    def __init__(
        self,
        step: _native.SubmittedStep,
        draws: Draws,
        processed: dict[int, tuple[tuple[Processor, ...], Ints]],
    ) -> None:
        self._step = step
        self._draws = draws
        self._processed = processed  # by slot: processors, and the prompt
        self._failures: list[tuple[int, str]] = []
        self._is_finished = False

    def done(self) -> bool:
        return self._step.done()

    def finish(self) -> None:
        """Wait for the step, and draw what waits for processors."""
        if self._is_finished:
            return
        self._step.wait()
        self._is_finished = True
        for sample in self._step.waiting():
            slot = int(self._draws.slots[sample])
            processors, prompt = self._processed[slot]
            try:
                while self._draw_next(sample, processors, prompt):
                    pass
            except SamplingError as error:
                self._step.abandon(sample)
                self._failures.append((slot, str(error)))

    def _draw_next(self, sample: int, processors: tuple[Processor, ...], prompt: Ints) -> bool:
        row = self._step.rule_row(sample)
        if row is None:
            return False
        output = self._step.generated(sample)
        for processor in processors:
            row = call_processor(processor, prompt, output, row)
        return self._step.resume(sample, row)

    def collect(self) -> StepOutput:
        self.finish()
        output = _output(*self._step.take())
        if not self._failures:
            return output
        return output._replace(failures=(*output.failures, *self._failures))


def _output(tokens: tuple[tuple[int, ...], ...], rest: Any) -> StepOutput:
    if rest is None:
        # The same as StepOutput(tokens), without another call.
        return tuple.__new__(StepOutput, (tokens, (), (), (), (), (), (), 0.0, ()))
    failures, logprobs, prompts, pooled, proposals, saved, ahead_seconds, states = rest
    return StepOutput(
        tokens,
        tuple([(slot, _MESSAGES[why]) for slot, why in failures]),
        _rows(logprobs),
        _rows(prompts),
        tuple(pooled),
        proposals,
        tuple(saved),
        ahead_seconds,
        tuple(states),
    )


def _rows(entries: list[Any]) -> tuple[RowLogprobs, ...]:
    return tuple([RowLogprobs(*entry) for entry in entries])
