"""The descriptions of formats: the data from which parsers, grammars and renderings derive.

White space at the ends of a string of marks is written and constrained as it stands; parsers
accept any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from octavo.formats.bodies.json_body import JsonBody
from octavo.formats.bodies.keyed_body import KeyedBody
from octavo.formats.bodies.named_body import NamedBody
from octavo.formats.bodies.python_body import PythonBody
from octavo.formats.bodies.tagged_body import TaggedBody
from octavo.formats.protocol import Call

AnyBody = JsonBody | NamedBody | TaggedBody | PythonBody | KeyedBody


class Form(Struct, frozen=True, forbid_unknown_fields=True):
    """One way to write calls: section (call body call_end separator)… section_end."""

    body: AnyBody
    section: tuple[str, ...] = ()  # marks before all calls
    section_end: tuple[str, ...] = ()
    call: tuple[str, ...] = ()  # marks before each call
    call_end: tuple[str, ...] = ()
    separator: str = ""  # between calls
    at_start: bool = False  # without marks: only where an answer begins or a call has ended

    def __post_init__(self) -> None:
        if not self.at_start and not (self.opening and self.opening[0].strip()):
            raise ValueError(
                "a form begins with a mark (`section` or `call`), unless `at_start` is true: "
                "without it no parser could tell a call from text"
            )

    @property
    def opening(self) -> tuple[str, ...]:
        """The marks before the first call."""
        return (*self.section, *self.call)

    @property
    def trigger(self) -> str:
        """The mark that shows that calls begin; "" for forms that are looked for at the start."""
        return "" if self.at_start else self.opening[0].strip()

    @property
    def marks(self) -> Iterator[str]:
        """The marks of the form, and those in the body."""
        for piece in (*self.opening, *self.call_end, self.separator, *self.section_end):
            if piece.strip():
                yield piece.strip()
        yield from self.body.marks


class ToolFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """A way in which a family of models writes calls."""

    name: str
    forms: tuple[Form, ...]  # the first is the one to write; a parser reads all
    stops: tuple[str, ...] = ()  # special tokens that end an answer with calls
    variant_of: str | None = None  # the format whose name is used where this one is detected
    reasoning: str | None = None  # the reasoning format without which this one makes no sense
    arguments: Literal["object", "string"] = "object"  # the form that its chat template reads
    call_ids: Literal["any", "nine_letters"] = "any"  # which ids its chat template accepts
    # For models that were made for no format: tools, past calls and results are text to the
    # template, every call is constrained, and nothing follows calls.
    is_generic: bool = False
    # The marks around a call's result, for templates that know no results.
    result: tuple[str, str] = ("<tool_response>\n", "\n</tool_response>")
    detect: tuple[tuple[str, ...], ...] = ()  # templates that hold all strings of one of these

    def __post_init__(self) -> None:
        if not self.forms:
            raise ValueError("a format of calls has at least one form")

    @property
    def marks(self) -> Iterator[str]:
        """The strings that may be special tokens, of all forms."""
        for form in self.forms:
            yield from form.marks


class ReasoningFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """A way in which a family of models writes its reasoning before the answer."""

    name: str
    open: tuple[str, ...]  # alternatives; the first is the one to write
    close: tuple[str, ...]
    answer_open: str = ""  # marks around the text of the answer
    answer_close: str = ""
    ignored: tuple[str, ...] = ()  # more marks that are no text
    may_repeat: bool = False  # the model may reason again after text or calls
    ends_at_calls: bool = False  # calls may begin before the reasoning is closed
    is_kept: bool = False  # the reasoning stays in the text, with its marks
    forced_end: str = ""  # written when a budget is spent: a text before a mark; "": the mark alone
    detect: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, marks in (("open", self.open), ("close", self.close)):
            if not marks or not all(mark.strip() for mark in marks):
                raise ValueError(f"`{name}` is at least one mark, and none of them is blank")
        ends = tuple(mark.strip() for mark in self.close)
        if self.forced_end and not self.forced_end.rstrip().endswith(ends):
            raise ValueError(
                f"it ends no reasoning in the format {self.name}; end it with "
                f"{' or '.join(map(repr, ends))}"
            )

    @property
    def marks(self) -> Iterator[str]:
        """The strings that may be special tokens."""
        for mark in (*self.open, *self.close, *self.between):
            yield mark.strip()

    @property
    def between(self) -> tuple[str, ...]:
        """The marks that are neither text nor reasoning."""
        marks = (self.answer_open, self.answer_close, *self.ignored)
        return tuple(mark.strip() for mark in marks if mark)


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of a model; without one of them, its answers are not searched for such parts."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def marks(self) -> frozenset[str]:
        """The strings that a parser looks for; some are special tokens, some contain them."""
        tools = () if self.tools is None else self.tools.marks
        reasoning = () if self.reasoning is None else self.reasoning.marks
        return frozenset((*tools, *reasoning))

    def kept(self, special_tokens: Iterable[str]) -> frozenset[str]:
        """Return those special tokens that a parser must see; the others may be skipped."""
        marks = "\n".join(self.marks)
        return frozenset(token for token in special_tokens if token and token in marks)

    @property
    def stops(self) -> tuple[str, ...]:
        """The special tokens that end an answer with calls, beside the model's own."""
        return () if self.tools is None else self.tools.stops


def write_calls(tool_format: ToolFormat, calls: Sequence[Call]) -> str:
    """Return the text of these calls; their arguments must be JSON objects."""
    form = tool_format.forms[0]
    before, after = "".join(form.call), "".join(form.call_end)
    texts = [f"{before}{form.body.write(call, i)}{after}" for i, call in enumerate(calls)]
    return f"{''.join(form.section)}{form.separator.join(texts)}{''.join(form.section_end)}"
