"""The inputs of these routes: texts, token ids, and llama.cpp's: both in one list, and objects."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from octavo.dialects.common.mixed import runs_in
from octavo.serving.schema.prompts import MAX_PROMPT_ITEMS, MAX_PROMPTS
from octavo.text.pairs import Part
from octavo.transport.errors import invalid, not_yet
from octavo.workers.jobs import PromptJob, packed

INT32 = 2**31 - 1
MAX_PARTS = 1024

TokenId = Annotated[int, Meta(ge=0, le=INT32)]
Mixed = Annotated[list[str | TokenId], Meta(max_length=MAX_PROMPT_ITEMS)]


class InputPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of an input's content; only text is supported."""

    type: Annotated[str, Meta(max_length=64)]
    text: str | None = None
    # Fields of other parts, defined so that the error names the type of the part.
    image_url: Any = None
    input_audio: Any = None
    input_video: Any = None


class InputObject(Struct, kw_only=True, forbid_unknown_fields=True):
    """An input as an object, with a text or the parts of one."""

    prompt_string: str | None = None
    content: Annotated[list[InputPart], Meta(min_length=1, max_length=MAX_PARTS)] | None = None
    multimodal_data: Any = None  # refused unless there are none


Input = (
    str
    | InputObject
    | Annotated[list[str | TokenId | InputObject | Mixed], Meta(max_length=MAX_PROMPT_ITEMS)]
)


def inputs_schema(name: str) -> dict[str, Any]:
    """Return what the type of such a field does not express, for the OpenAPI document."""
    kinds = ("string", "object")
    whole = {"anyOf": [*({"type": kind} for kind in kinds), {"type": "array", "minItems": 1}]}
    item = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    one = {"type": "array", "minItems": 1, "items": item, "contains": {"type": "integer"}}
    several = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": whole}
    return {"properties": {name: {"anyOf": [*({"type": kind} for kind in kinds), one, several]}}}


def is_one(given: Any) -> bool:
    """Return whether a field holds one input: a list without token ids of its own is several."""
    return not isinstance(given, list) or any(isinstance(each, int) for each in given)


def inputs_in(given: Any, name: str) -> list[Any]:
    """Return one input or several as a list; raise ApiError for none, and for too many."""
    if is_one(given):
        return [given]
    if not given:
        raise invalid(f"{name} is an empty list; give at least one text", name)
    if len(given) > MAX_PROMPTS:
        raise invalid(
            f"{name} has {len(given)} texts; at most {MAX_PROMPTS} are accepted: divide them "
            "among requests",
            name,
        )
    return list(given)


def input_job(given: Any, name: str, prefix: str, *, is_framed: bool) -> PromptJob | list[int]:
    """Return what makes the prompt of one input; a prefix is put before what is all text."""
    if isinstance(given, InputObject):
        given = _text_of(given, name)
    if isinstance(given, str):
        return PromptJob(text=prefix + given, add_special_tokens=is_framed)
    if all(isinstance(each, int) for each in given):
        return list(given)
    parts: list[Part] = []
    has_text = False
    for each in runs_in(given, name):
        if isinstance(each, str):  # only the first text gets the special tokens
            parts.append(Part(text=each, is_framed=is_framed and not has_text))
            has_text = True
        else:
            parts.append(Part(packed_ids=packed(each)))
    return PromptJob(parts=parts)


def _text_of(given: InputObject, name: str) -> str:
    if given.multimodal_data:
        raise not_yet(f"{name}.multimodal_data", "this model reads text; leave it out")
    if (given.prompt_string is None) == (given.content is None):
        raise invalid(f"{name} needs either prompt_string, a text, or content, its parts", name)
    for index, each in enumerate(given.content or ()):
        if each.type != "text" or each.text is None:
            raise invalid(
                f"{name}.content[{index}] is of the type {each.type!r}; this model reads parts of "
                "the type 'text', with a text",
                name,
            )
    if given.content is None:
        return given.prompt_string or ""
    return "".join(each.text or "" for each in given.content)
