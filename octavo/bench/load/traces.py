"""Reads traces: when requests came, how long they were, and what their prompts had in common.

A trace of Mooncake's form has a JSON object on each line: `timestamp`, `input_length`,
`output_length` and, if prompts share beginnings, `hash_ids`, one for each block of a prompt. One of
BurstGPT's form is CSV with a head. No more of a file is read than was asked for.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from octavo.bench.load.asked import Piece, Shape
from octavo.bench.load.files import object_of
from octavo.bench.load.shapes import blocks
from octavo.core.config import ConfigError

MOST_LINE = 1 << 24  # characters
MOST_LENGTH = 10_000_000  # tokens of a prompt, or of an answer
ALL_MODELS = "all"
_BURSTGPT_HEAD = ("Timestamp", "Model", "Request tokens", "Response tokens")


def read_mooncake(path: Path, block: int, unit: float) -> Iterator[Shape]:
    """Yield the requests of a trace, with so many tokens a block and seconds a unit of time."""
    for number, line in _lines(path):
        if line.strip():
            place = f"{path}, line {number}"
            yield _of_object(object_of(line, place), place, number, block, unit)


def _of_object(given: Mapping[str, Any], place: str, number: int, block: int, unit: float) -> Shape:
    prompt, answer = (_length(given, name, place) for name in ("input_length", "output_length"))
    at = _time(given.get("timestamp"), place) * unit
    ids = given.get("hash_ids")
    if ids is None:
        return Shape((Piece(str(number), prompt),), answer, at)
    if not isinstance(ids, list) or not all(type(each) in (int, str) for each in ids):
        raise ConfigError(f"{place}: hash_ids must be a list of numbers or names of blocks")
    if len(ids) * block < prompt:
        raise ConfigError(
            f"{place}: {len(ids):,} hash_ids of {block:,} tokens each are less than its "
            f"input_length of {prompt:,}; timed_trace_chunk_hash_size is the size of a block"
        )
    return Shape(blocks(tuple(map(str, ids)), prompt, block), answer, at)


def read_burstgpt(path: Path, model: str) -> Iterator[Shape]:
    """Yield the requests of a trace that a model has answered; ALL_MODELS takes every one.

    Rows without an answer, which are failures there, are left out.
    """
    rows = csv.reader(line for _, line in _lines(path))
    names = [each.strip() for each in next(_rows(rows, path), [])]
    if missing := [each for each in _BURSTGPT_HEAD if each not in names]:
        raise ConfigError(
            f"{path}, line 1: the columns {', '.join(missing)} are missing; BurstGPT's files begin "
            f"with {','.join(_BURSTGPT_HEAD)}"
        )
    is_empty = True
    for row in _rows(rows, path):
        if not row:
            continue
        place = f"{path}, line {rows.line_num}"
        if len(row) != len(names):
            raise ConfigError(f"{place}: {len(row)} values, but the head has {len(names)} columns")
        given = dict(zip(names, row, strict=True))
        answer = _length(given, "Response tokens", place, least=0)
        if answer and model in (ALL_MODELS, given["Model"]):
            prompt = _length(given, "Request tokens", place)
            yield Shape(
                (Piece(str(rows.line_num), prompt),), answer, _time(given["Timestamp"], place)
            )
            is_empty = False
    if is_empty and model != ALL_MODELS:
        raise ConfigError(
            f"{path} has no answered request of the model {model!r}; choose another with "
            f"burstgpt_model, or {ALL_MODELS}"
        )


def _rows(rows: Any, path: Path) -> Iterator[list[str]]:
    """Yield rows of CSV; raise ConfigError where a text is none."""
    try:
        yield from rows
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: it is not CSV: {error}") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers; raise ConfigError if one is too long."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            number = 0
            while line := file.readline(MOST_LINE + 1):
                number += 1
                if len(line) > MOST_LINE:
                    raise ConfigError(
                        f"{path}, line {number}: it is longer than {MOST_LINE:,} characters"
                    )
                yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the trace cannot be read: {path}: {error}") from None


def _length(given: Mapping[str, Any], name: str, place: str, least: int = 1) -> int:
    """Return a number of tokens, written as JSON or CSV has it."""
    value = given.get(name)
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if type(number) is not int or not least <= number <= MOST_LENGTH:
        raise ConfigError(
            f"{place}: {name} must be a number of tokens from {least} to {MOST_LENGTH:,}, "
            f"not {str(value)[:40]!r}"
        )
    return number


def _time(value: Any, place: str) -> float:
    try:
        number = float(value) if type(value) in (int, float, str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigError(
            f"{place}: the timestamp must be a number from 0, not {str(value)[:40]!r}"
        )
    return number


def in_order(shapes: list[Shape], path: Path) -> list[Shape]:
    """Return requests by time, which begins with the first of them."""
    if not shapes:
        raise ConfigError(f"{path} has no requests")
    shapes.sort(key=lambda each: each.at or 0.0)
    first = shapes[0].at or 0.0
    return [each._replace(at=(each.at or 0.0) - first) for each in shapes]
