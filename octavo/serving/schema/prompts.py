"""Prompts in requests: one or several, texts or token ids; and names that become a part of one."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from octavo.serving.schema.decode import MAX_LISTS
from octavo.transport.errors import invalid

# A template writes them between its marks, where a line's end or a NUL would make another form.
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*(?![\s\S])"
Role = Annotated[str, Meta(min_length=1, max_length=64, pattern=_NO_CONTROLS)]
NameInPrompt = Annotated[str, Meta(max_length=256, pattern=_NO_CONTROLS)]
MAX_PROMPTS = MAX_LISTS
MAX_PROMPT_ITEMS = 1 << 20  # token ids in one prompt
MAX_CHARACTERS = 1 << 25  # of all prompts that share a text of the body, each with the whole text


def prompts_schema(name: str) -> dict[str, Any]:
    """Return what the type of such a field does not express, for the OpenAPI document."""
    whole = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]}
    ids = {"type": "array", "minItems": 1, "items": {"type": "integer"}}
    several = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": whole}
    return {"properties": {name: {"anyOf": [{"type": "string"}, ids, several]}}}


def check_characters(total: int, num_prompts: int, name: str) -> None:
    """Raise ApiError for too many characters of prompts that share the field `name`."""
    if total > MAX_CHARACTERS:
        raise invalid(
            f"{name} in each of {num_prompts} prompts makes {total} characters together; at most "
            f"{MAX_CHARACTERS} are accepted: divide them among requests",
            name,
        )


def separate(given: str | list[Any], name: str) -> list[str | list[int]]:
    """Return one prompt or several as a list of prompts; `name` is the field's."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid(f"{name} is an empty list; give at least one text", name)
    if all(isinstance(item, int) for item in given):
        return [given]
    if any(isinstance(item, int) for item in given):
        raise invalid(f"{name} mixes token ids with whole texts; give one kind", name)
    if len(given) > MAX_PROMPTS:
        raise invalid(
            f"{name} has {len(given)} texts; at most {MAX_PROMPTS} are accepted: divide them "
            "among requests",
            name,
        )
    return given
