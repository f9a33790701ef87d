"""A step of the native backend that is computed at once, with the reference's sampler."""

from __future__ import annotations

from octavo.backends.step import StepOutput


class FinishedStep:
    """A step that was computed when it was submitted."""

    def __init__(self, output: StepOutput) -> None:
        self._output = output

    def done(self) -> bool:
        return True

    def collect(self) -> StepOutput:
        return self._output
