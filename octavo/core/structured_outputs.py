"""The shape that a request's text must have, as the user describes it; names are those of vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHAPES = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
MAX_SHAPE_LENGTH = 1 << 17  # characters of one shape
MAX_CHOICES = 4096
_TEXTS = ("json", "regex", "grammar", "structural_tag", "whitespace_pattern")
_OF_JSON = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
_SWITCHES = ("disable_any_whitespace", "disable_additional_properties", "strict")


class ShapeError(ValueError):
    """A shape that is not described as it must be.

    `field` is at fault; `path` leads from it to the wrong place, as in `.properties.a.not`.
    """

    def __init__(self, what: str, field: str, path: str = "") -> None:
        super().__init__(f"{field}{path}: {what}")
        self.what = what
        self.field = field
        self.path = path


@dataclass(frozen=True)
class StructuredOutputsParams:
    """One shape of a text: exactly one of the first six fields is given.

    `json` is a schema and `structural_tag` a description of tags, as a mapping or as JSON text;
    both are stored as text, so that shapes can be compared, hashed and sent as they are. `grammar`
    is in Lark's syntax, or in llama.cpp's (GBNF).
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None  # any sequence is accepted
    grammar: str | None = None
    json_object: bool | None = None  # any JSON object
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False  # between the parts of JSON
    disable_additional_properties: bool = False  # where a schema does not mention them
    whitespace_pattern: str | None = None  # a regex for the whitespace between the parts of JSON
    strict: bool = True  # False: what of a schema cannot be enforced is left out, with a warning

    def __post_init__(self) -> None:
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, _as_json(name, value))
        for name in _TEXTS:
            _check_text(name, getattr(self, name))
        if self.choice is not None:
            object.__setattr__(self, "choice", _checked_choices(self.choice))
        if self.json_object is not None:
            _check_switch("json_object", self.json_object)
        for name in _SWITCHES:
            _check_switch(name, getattr(self, name))
        given = [name for name in SHAPES if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "none is given"
            raise ShapeError(
                f"a text has one shape, and {what}; give exactly one of {', '.join(SHAPES)}",
                given[-1] if given else "structured_outputs",
            )
        if self.whitespace_pattern is not None and self.disable_any_whitespace:
            raise ShapeError(
                "disable_any_whitespace leaves no whitespace to describe; give one of the two",
                "whitespace_pattern",
            )
        if not self._has_json:
            for name in _OF_JSON:
                if getattr(self, name):
                    raise ShapeError(
                        f"it concerns JSON, of which {given[0]} has none; leave {name} out", name
                    )

    @property
    def _has_json(self) -> bool:
        """True if the shape can contain a schema."""
        if self.grammar is not None:
            return "%json" in self.grammar
        return self.regex is None and self.choice is None


def _as_json(name: str, value: object) -> str:
    if not isinstance(value, Mapping | bool):
        hint = ""
        if hasattr(value, "model_json_schema"):
            hint = ": for a model of pydantic, pass its model_json_schema()"
        raise ShapeError(f"a {type(value).__name__} was given; it must be an object{hint}", name)
    try:
        return json.dumps(dict(value) if isinstance(value, Mapping) else value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ShapeError(f"it cannot be written as JSON: {error}", name) from None


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ShapeError(f"{value!r} was given; it must be True or False", name)


def _check_text(name: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise ShapeError(f"a {type(text).__name__} was given; it must be a string", name)
    if not text:
        raise ShapeError("the text is empty; leave the field out for text without a shape", name)
    if len(text) > MAX_SHAPE_LENGTH:
        raise ShapeError(f"{len(text)} characters; at most {MAX_SHAPE_LENGTH} are allowed", name)


def _checked_choices(choices: object) -> tuple[str, ...]:
    name = "choice"
    if isinstance(choices, str) or not isinstance(choices, list | tuple):
        raise ShapeError(f"a {type(choices).__name__} was given; it must be a list", name)
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise ShapeError(f"{len(choices)} entries; 1 to {MAX_CHOICES} are allowed", name)
    for index, each in enumerate(choices):
        if not isinstance(each, str) or not each:
            raise ShapeError("each entry must be text that is not empty", name, f"[{index}]")
    total = sum(map(len, choices))
    if total > MAX_SHAPE_LENGTH:
        raise ShapeError(f"{total} characters; at most {MAX_SHAPE_LENGTH} are allowed", name)
    return tuple(choices)
