"""Sinks: where the outputs of a request go, and the one from which a task reads them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.core.sampling_params import RequestOutputKind


class Sink(Protocol):
    """The receiver of one request's outputs. It is called in the event loop and never waits."""

    def put(self, output: RequestOutput) -> None:
        """Take an output; after a finished one nothing follows."""

    def fail(self, error: Exception) -> None:
        """Take the error that has ended the request; nothing follows."""


class WaitingSink:
    """A sink that a task reads. At most one output waits in it: later ones are merged into it."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._is_delta = kind is RequestOutputKind.DELTA
        self._ready = asyncio.Event()
        self._output: RequestOutput | None = None
        self._errors: list[Exception] = []  # at most one

    def put(self, output: RequestOutput) -> None:
        if self._is_delta and self._output is not None:
            output = joined(self._output, output)
        self._output = output
        self._ready.set()

    def fail(self, error: Exception) -> None:
        self._errors = [error]
        self._ready.set()

    async def get(self) -> RequestOutput:
        """Wait for the next output, or raise the error that has ended the request."""
        await self._ready.wait()
        self._ready.clear()
        if self._errors:
            # Not kept: the error's traceback refers to self, and the two would keep each other.
            raise self._errors.pop()
        output, self._output = self._output, None
        assert output is not None
        return output


def joined(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Merge two deltas of a request; each may hold only some of its continuations."""
    outputs = {output.index: output for output in first.outputs}
    for output in second.outputs:
        before = outputs.get(output.index)
        outputs[output.index] = output if before is None else _continued(before, output)
    return replace(
        second,
        outputs=[outputs[index] for index in sorted(outputs)],
        prompt_logprobs=second.prompt_logprobs or first.prompt_logprobs,
        hidden_state=second.hidden_state or first.hidden_state,
    )


def _continued(first: CompletionOutput, second: CompletionOutput) -> CompletionOutput:
    logprobs = None if second.logprobs is None else [*(first.logprobs or ()), *second.logprobs]
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs,
        deltas=(*first.deltas, *second.deltas),
        num_reasoning_tokens=first.num_reasoning_tokens + second.num_reasoning_tokens,
        starts=[*first.starts, *[len(first.deltas) + each for each in second.starts]],
    )
