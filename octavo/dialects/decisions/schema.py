"""The requests and responses of /v1/systemone and /v1/decisions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.core.config import MAX_PRIORITY
from octavo.dialects.common.schema.chat import MAX_MESSAGES, MAX_PARTS
from octavo.dialects.common.schema.sampling import MAX_DEADLINE_MS
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_QUESTIONS = 64
MAX_CHOICES = 26  # the letters with which they are labelled
MAX_LEVELS = 10  # the digits


def _off(value: Any) -> bool:
    return value is False or value in (None, [])


_MEDIA = Unsupported(_off, "this model reads text; leave it out", "[]")
_JOINT = Unsupported(_off, "each question is read on its own; send false", "false")
_IGNORED = {
    "request_id": "the x-request-id header names a request",
    "safety_identifier": "the API key identifies the user",
    "user": "the API key identifies the user",
}

Model = Annotated[str, Meta(max_length=512)]
Salt = Annotated[str, Meta(min_length=1, max_length=256)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Deadline = Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)]


class AskedQuestion(Struct, kw_only=True, forbid_unknown_fields=True):
    """A question of /v1/systemone; `noul` asks for yes or no."""

    type: Literal["choice", "noul", "score"]
    instructions: str | None = None
    # For a choice an object of options and their descriptions, for a score a list of levels, for
    # a noul the descriptions of true and false.
    criteria: Any = None


class SystemOneRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Questions about a state, by their names."""

    rules: ClassVar[FieldRules] = FieldRules(
        open=frozenset({"state", "questions", "chat_template_kwargs"}),
        closed=frozenset({"questions"}),
        unsupported={
            **dict.fromkeys(("images", "audio", "videos"), _MEDIA),
            "joint": _JOINT,
        },
        ignored=_IGNORED,
        of_prompts={"state": lambda request: "", "instructions": lambda request: None},
        other_names={"input": "state"},
    )
    state: Any  # a text, or what is given to the model as JSON
    questions: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=256)], AskedQuestion],
        Meta(min_length=1, max_length=MAX_QUESTIONS),
    ]
    instructions: str | None = None  # before all questions
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    model: Model | None = None
    cache_salt: Salt | None = None
    priority: Priority = 0
    deadline_ms: Deadline | None = None


class SystemOneUsage(Struct, kw_only=True):
    """The tokens of all questions."""

    input_tokens: int
    output_tokens: int


class Diagnosis(Struct, kw_only=True):
    """The confidence in an answer: the probability of all labels among all tokens."""

    label_mass: float
    argmax_is_label: bool  # the likeliest token of all is a label


class SystemOneResponse(Struct, kw_only=True):
    """The answers to all questions, by their names."""

    id: str
    created: int
    model: str
    answers: dict[str, dict[str, Any]]
    usage: SystemOneUsage
    diagnostics: dict[str, Diagnosis]
    object: str = "structured_decision"
    joint: None = None  # no questions are read together


class DecisionPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message; only text is supported."""

    type: Annotated[str, Meta(max_length=64)]
    text: str | None = None
    image_url: Any = None  # refused, by the type of the part
    detail: Any = None
    file_id: Any = None


class DecisionMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message of the user."""

    role: Literal["user"]
    content: str | Annotated[list[DecisionPart], Meta(max_length=MAX_PARTS)]
    type: Literal["message"] = "message"


class DecisionChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """An option of a choice."""

    value: str | bool
    description: str = ""


class DecisionLevel(Struct, kw_only=True, forbid_unknown_fields=True):
    """A level of a score, which is its place in the list."""

    label: str
    description: str = ""


class Predicate(Struct, kw_only=True, forbid_unknown_fields=True, tag="predicate"):
    """A question for yes or no."""

    instructions: str
    name: str | UnsetType = UNSET


class Choice(Struct, kw_only=True, forbid_unknown_fields=True, tag="choice"):
    """A question for one of several options."""

    instructions: str
    choices: Annotated[list[DecisionChoice], Meta(min_length=2, max_length=MAX_CHOICES)]
    name: str | UnsetType = UNSET


class Score(Struct, kw_only=True, forbid_unknown_fields=True, tag="score"):
    """A question for a place on a scale."""

    instructions: str
    levels: Annotated[list[DecisionLevel], Meta(min_length=2, max_length=MAX_LEVELS)]
    name: str | UnsetType = UNSET


class DecisionsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Questions about an input, in a list."""

    rules: ClassVar[FieldRules] = FieldRules(
        closed=frozenset({"input", "questions"}),
        unsupported={"joint": _JOINT},
        ignored=_IGNORED,
        of_prompts={"input": lambda request: ""},
        other_names={"state": "input"},
    )
    input: str | Annotated[list[DecisionMessage], Meta(max_length=MAX_MESSAGES)]
    questions: Annotated[
        list[Predicate | Choice | Score], Meta(min_length=1, max_length=MAX_QUESTIONS)
    ]
    model: Model | None = None
    cache_salt: Salt | None = None
    priority: Priority = 0
    deadline_ms: Deadline | None = None


class InputDetails(Struct, kw_only=True):
    """The tokens of the inputs, by kind."""

    cached_tokens: int
    cache_write_tokens: int = 0  # nothing is paid for them


class OutputDetails(Struct, kw_only=True):
    """The generated tokens, by kind; none is reasoning."""

    reasoning_tokens: int = 0


class DecisionsUsage(Struct, kw_only=True):
    """The tokens of all questions."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputDetails


class DecisionsResponse(Struct, kw_only=True):
    """The answers to all questions, in their order."""

    model: str
    answers: list[dict[str, Any]]
    usage: DecisionsUsage
