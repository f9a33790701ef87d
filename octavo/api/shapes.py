"""The grammars of shapes: one that was checked before is known, a new one is checked elsewhere."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from octavo.api.outputs import RequestError
from octavo.api.text_model import TextModel
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.checked import CheckedShape, job_of

if TYPE_CHECKING:
    import asyncio

    from octavo.workers.shape_checker import ShapeChecker

log = logging.getLogger(__name__)


def shape_grammar(model: TextModel, shape: StructuredOutputsParams) -> str:
    """Return the grammar of a shape, in the grammar engine's own language; wait for a new one."""
    checked = model.checked_shapes.get(shape)
    if checked is None:
        checked = _checker().check(job_of(shape, model.facts.vocabulary))
        _keep(model, shape, checked)
    for place, what in checked.warnings:
        log.warning("structured_outputs.%s: %s", place, what)
    if checked.what:
        raise shape_error(checked)
    return checked.grammar


async def check_shape(
    model: TextModel, sampling: SamplingParams | None, lock: asyncio.Lock
) -> None:
    """Check a new shape in a thread, so that `shape_grammar` then waits for nothing.

    With the lock, one thread at a time waits for the one process that checks shapes. Raise
    RequestError for a shape that was not checked to the end.
    """
    shape = sampling.structured_outputs if isinstance(sampling, SamplingParams) else None
    if shape is None or model.checked_shapes.get(shape) is not None:
        return
    import asyncio

    async with lock:
        if model.checked_shapes.get(shape) is not None:  # others have asked for it meanwhile
            return
        job = job_of(shape, model.facts.vocabulary)
        checked = await asyncio.to_thread(_checker().check, job)
        _keep(model, shape, checked)
        if checked.is_passing:
            raise shape_error(checked)


def shape_error(checked: CheckedShape) -> RequestError:
    """Return the error of a shape that is wrong."""
    param = f"structured_outputs.{checked.field}{checked.path}"
    return RequestError(f"{param}: {checked.what}", param=param)


def _keep(model: TextModel, shape: StructuredOutputsParams, checked: CheckedShape) -> None:
    if not checked.is_passing:
        model.checked_shapes.put(shape, checked)


def _checker() -> ShapeChecker:
    from octavo.workers.shape_checker import SHARED  # here, since few processes check shapes

    return SHARED
