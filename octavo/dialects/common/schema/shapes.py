"""The fields in which requests describe the shape of the answer, under all servers' names."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from octavo.core.structured_outputs import MAX_CHOICES
from octavo.dialects.common.schema.samplers import SamplerFields

AnyObject = dict[str, Any]
Schema = AnyObject | bool | str
Choices = Annotated[list[str], Meta(max_length=MAX_CHOICES)]
Word = Annotated[str, Meta(max_length=64)]


class JsonSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema with its name and description, which the model is not shown."""

    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    strict: bool | None = None  # false: what cannot be enforced is left out, with a warning
    body: Schema | None = field(default=None, name="schema")


class ResponseFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer as OpenAI's clients describe it."""

    type: Word  # text, json_object, json_schema, structural_tag; of TGI: json, regex
    json_schema: JsonSchema | None = None
    body: Schema | None = field(default=None, name="schema")  # beside json_object, as in llama.cpp
    # In TGI's form: the schema beside json or json_object, the expression beside regex.
    value: Schema | None = None
    # of a structural tag
    structures: list[AnyObject] | None = None
    triggers: list[str] | None = None
    format: AnyObject | None = None


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer as vLLM's clients describe it."""

    json: Schema | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: AnyObject | str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    strict: bool = True  # false: what cannot be enforced is left out, with a warning
    disable_fallback: bool | None = None  # ignored: there is one grammar engine


class ShapeFields(SamplerFields, kw_only=True):
    """The fields of a request that describe the shape of its answer; at most one of them does.

    A struct has one base, and requests with a shape have the fields of samplers too.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None  # beside guided_json
    grammar: str | None = None  # llama.cpp's: GBNF, or Lark
    json_schema: Schema | None = None  # llama.cpp's and SGLang's
    regex: str | None = None  # SGLang's
    ebnf: str | None = None  # SGLang's: as `grammar`
    structural_tag: AnyObject | str | None = None  # SGLang's
