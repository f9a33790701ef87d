"""The check of a request's shape as a job for another process, and its results that are kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from msgspec import Struct

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams

MAX_KEPT = 1024  # checked shapes
MAX_KEPT_CHARACTERS = 16 << 20  # of all of them, with their grammars


Key = StructuredOutputsParams | bytes  # a shape, or a job that contains one


class ShapeJob(Struct, frozen=True, tag=True):
    """A shape to translate and to compile, as the fields of StructuredOutputsParams."""

    fields: dict[str, Any]
    vocabulary: int  # token ids that a grammar may name
    number: int = 0  # of the job, which its answer repeats


class CheckedShape(Struct, frozen=True, kw_only=True, tag=True):
    """The grammar of a shape with the warnings, or what is wrong with the shape, and where."""

    grammar: str = ""
    warnings: list[tuple[str, str]] = []  # the place, and what is not done
    what: str = ""  # is wrong; empty for a shape that is right
    field: str = ""
    path: str = ""
    number: int = 0  # of the job
    is_passing: bool = False  # it was not checked to the end: the next check may find it right

    @property
    def num_characters(self) -> int:
        """The size of the grammar and of what comes with it."""
        return len(self.grammar) + sum(map(len, sum(self.warnings, ()))) + len(self.what)


def job_of(shape: StructuredOutputsParams, vocabulary: int) -> ShapeJob:
    """Return the job that checks a shape."""
    return ShapeJob(asdict(shape), vocabulary)


def check(job: ShapeJob) -> CheckedShape:
    """Translate and compile the shape of a job."""
    from octavo.grammar.shapes import grammar_of  # its library is loaded when it is needed

    try:
        made = grammar_of(StructuredOutputsParams(**job.fields), job.vocabulary)
    except ShapeError as error:
        return CheckedShape(what=error.what, field=error.field, path=error.path, number=job.number)
    return CheckedShape(grammar=made.text, warnings=made.warnings, number=job.number)


class CheckedShapes:
    """The shapes that were checked last, so that a repeated one is not checked again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, CheckedShape] = OrderedDict()
        self._num_characters = 0

    def get(self, shape: Key) -> CheckedShape | None:
        found = self._kept.get(shape)
        if found is not None:
            self._kept.move_to_end(shape)
        return found

    def put(self, shape: Key, result: CheckedShape) -> None:
        """Keep a result; forget the results that were used longest ago if there are too many."""
        if shape in self._kept:
            return
        self._kept[shape] = result
        self._num_characters += _size(shape) + result.num_characters
        while len(self._kept) > MAX_KEPT or self._num_characters > MAX_KEPT_CHARACTERS:
            old, forgotten = self._kept.popitem(last=False)
            self._num_characters -= _size(old) + forgotten.num_characters


def _size(shape: Key) -> int:
    if isinstance(shape, bytes):
        return len(shape)
    texts = (shape.json, shape.regex, shape.grammar, shape.structural_tag, shape.whitespace_pattern)
    listed = [*(shape.choice or ()), *(text for text in texts if isinstance(text, str))]
    return sum(map(len, listed))
