"""One schema's trial: random texts of its grammar, each judged by the reference."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.generated_schemas import generated_schemas
from tests.grammar.json_schema.random_schemas import wild_schema
from tests.grammar.json_schema.real_schemas import real_schema
from tests.grammar.json_schema.walks import ENGINE, walk

_EMPTY = ("no text has this shape", "Unsatisfiable schema", "are required, and", "are possible")
TEXTS = 3  # of each schema
# The formats that jsonschema checks only beside further packages, in their widest reading: without
# a check, every text has the format, also where a schema asks for one that has it not.
WIDE = {
    "date-time": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].*",
    "duration": "P.*",
    "hostname": r"[0-9A-Za-z_.-]+|.*[^\x00-\x7f].*",
    "time": "[0-9]{2}:[0-9]{2}.*",
    "uri": "[A-Za-z][A-Za-z0-9+.-]*:.*",
}


@dataclass
class Tally:
    """The results of many trials."""

    num_schemas: int = 0
    num_empty: int = 0  # schemas that no text has
    num_texts: int = 0
    num_unfinished: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by the keyword
    wrong: list[str] = field(default_factory=list)

    @property
    def share_refused(self) -> float:
        """The share of the schemas that were refused although they are right."""
        return self.refused.total() / max(1, self.num_schemas)


def schemas(count: int, first: int = 0) -> Iterator[Any]:
    """Yield schemas: a quarter generated, a quarter wild, half in the shapes of programs."""
    yield from generated_schemas(count // 4, first)
    for number in range(first, first + count // 4):
        yield wild_schema(Random(number))
    for number in range(first, first + count - 2 * (count // 4)):
        yield real_schema(Random(number))


def _checker() -> FormatChecker:
    checker = FormatChecker()
    checker.checkers = dict(Draft202012Validator.FORMAT_CHECKER.checkers)
    for name, pattern in WIDE.items():
        whole = re.compile(pattern, re.DOTALL)
        checker.checkers[name] = (partial(_is_like, whole), ())
    return checker


def _is_like(whole: re.Pattern[str], value: object) -> bool:
    return not isinstance(value, str) or whole.fullmatch(value) is not None


CHECKER = _checker()


def judge(schema: Any, text: str) -> str | None:
    """Return why a text is not valid under a schema, if it is not."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    judge = Draft202012Validator(exact, format_checker=CHECKER)
    for error in judge.iter_errors(json.loads(text, parse_float=Decimal)):
        return f"{json.dumps(schema)} allows {text!r}: {error.message}"
    return None


def compiled(schema: Any, tally: Tally) -> str | None:
    """Return the grammar of a schema, which is counted; None if there is none."""
    tally.num_schemas += 1
    try:
        return grammar_of(StructuredOutputsParams(json=json.dumps(schema))).text
    except ShapeError as error:
        if any(words in error.what for words in _EMPTY):
            tally.num_empty += 1
        else:
            keyword = error.path.rpartition(".")[2] or error.what
            tally.refused[keyword] += 1
        return None


def try_schema(schema: Any, number: int, tally: Tally) -> None:
    """Compile a schema, write random texts of its grammar, and judge them."""
    grammar = compiled(schema, tally)
    if grammar is None:
        return
    matcher = ENGINE.compile(grammar)
    for seed in range(TEXTS):
        text = walk(matcher, Random(1000 * seed + number))
        if text is None:
            tally.num_unfinished += 1
            continue
        tally.num_texts += 1
        fault = judge(schema, text)
        if fault is not None:
            tally.wrong.append(fault)
