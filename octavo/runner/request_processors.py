"""The logits processors that an engine was started with, made anew for each request.

A request gives them arguments (`SamplingParams.extra_args`). What they make is put in front of the
functions that the request itself brings, where it is opened: all that follows treats them alike.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from octavo.backends.step import Processor
from octavo.core.plan import NewSlot, StepPlan
from octavo.core.sampling_params import SamplingParams
from octavo.grammar.failures import Failure

log = logging.getLogger(__name__)


class RequestProcessor(Protocol):
    """A class of an operator; its one object serves all requests of an engine.

    Both methods may be called again for the same request, after a preemption or a restart, and must
    then do the same.
    """

    def validate(self, arguments: dict[str, Any]) -> None:
        """Raise ValueError for arguments that a request must not have; it may have none ({})."""

    def make(self, arguments: dict[str, Any]) -> Processor | None:
        """Return a pure function (prompt ids, output ids, logits) -> logits; None: no change."""


class WithProcessors(NamedTuple):
    """A plan whose new slots have their processors, and why some slots have failed."""

    plan: StepPlan
    failures: list[tuple[int, Failure]]


def with_processors(plan: StepPlan, processors: Mapping[str, RequestProcessor]) -> WithProcessors:
    """Give the new slots of a plan the processors that are made for their requests."""
    if not processors:
        return WithProcessors(plan, [])
    opened: list[NewSlot] = []
    failures: list[tuple[int, Failure]] = []
    for new in plan.opened:
        sampling = new.sampling
        if not sampling.is_about_prompt:
            made = _made(sampling, processors)
            if isinstance(made, Failure):
                failures.append((new.slot, made))
            elif made:
                changed = copy(sampling)  # `replace` would bound the number of processors
                both = (*made, *sampling.logits_processors)
                object.__setattr__(changed, "logits_processors", both)
                new = replace(new, sampling=changed)
        opened.append(new)
    return WithProcessors(plan._replace(opened=tuple(opened)), failures)


def _made(
    sampling: SamplingParams, processors: Mapping[str, RequestProcessor]
) -> list[Processor] | Failure:
    """Return what the processors make for a request, in their order, or why one of them failed."""
    made: list[Processor] = []
    for name, processor in processors.items():
        try:
            processor.validate(sampling.arguments)
        except ValueError as error:
            return Failure(f"extra_args: {name} refuses them: {error}", is_impossible=True)
        except Exception as error:
            return _failed(name, "validate", f"{type(error).__name__}: {error}")
        try:
            one = processor.make(sampling.arguments)
        except Exception as error:
            return _failed(name, "make", f"{type(error).__name__}: {error}")
        if callable(one):
            made.append(one)
        elif one is not None:
            return _failed(name, "make", f"it returned {type(one).__name__}, no function")
    return made


def _failed(name: str, method: str, why: str) -> Failure:
    log.error("%s of the logits processor %s failed", method, name, exc_info=sys.exc_info()[1])
    return Failure(f"logits processor {name}: {method} failed: {why}", is_impossible=False)
