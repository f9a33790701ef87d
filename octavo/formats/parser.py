"""The parser of one answer: its reasoning first, then text and calls, as the formats say."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.formats.bodies.body import Context
from octavo.formats.bodies.json_text import stop_of
from octavo.formats.deltas import Delta, Parser, PlainText
from octavo.formats.description import Form, Formats, ReasoningFormat
from octavo.formats.protocol import Tool
from octavo.formats.reader import Marks, MismatchError, Reader, Steps
from octavo.formats.sink import Sink
from octavo.formats.thinking import Thinking, thinking_before


def make_parser(
    formats: Formats,
    tools: Sequence[Tool] = (),
    *,
    prompt_end: str = "",
    parallel: bool = True,
    must_call: bool = False,
) -> Parser:
    """Return a parser of one answer.

    The text that it is fed contains the marks of `formats`, special tokens included. Without tools,
    calls are not looked for. `prompt_end` is the end of the prompt, special tokens included: it
    shows whether the answer begins inside the reasoning. Without `parallel`, only the first call
    counts. An answer that `must_call` has no text: what looks like it is a call that was cut off.
    """
    if formats.reasoning is None and (formats.tools is None or not tools):
        return PlainText()
    sink = Sink(max_calls=None if parallel else 1, has_text=not must_call)
    return FormatParser(formats, tools, prompt_end, sink)


class FormatParser:
    """A parser that the descriptions of two formats define; implements `Parser`."""

    __slots__ = ("_reader", "_sink", "_steps")

    def __init__(
        self, formats: Formats, tools: Sequence[Tool], prompt_end: str, sink: Sink
    ) -> None:
        self._reader = Reader()
        self._sink = sink
        forms = formats.tools.forms if formats.tools is not None and tools else ()
        before = thinking_before(formats.reasoning, prompt_end)
        answer = _Answer(self._reader, self._sink, forms, tools, formats.reasoning)
        self._steps = answer.read(before)
        if before is Thinking.OPEN:
            self._advance()  # so that `is_reasoning` is right before the first text

    @property
    def is_reasoning(self) -> bool:
        """The kind of the text that comes next: True inside the reasoning."""
        return self._sink.is_reasoning

    def feed(self, text: str, is_last: bool) -> Sequence[Delta]:
        if text or is_last:
            self._reader.push(text, is_last)
            self._advance()
        return self._sink.take()

    def _advance(self) -> None:
        for _ in self._steps:  # up to the place where more text is needed
            return


class _Answer:
    """The grammar of a whole answer, as generators that read it."""

    def __init__(
        self,
        reader: Reader,
        sink: Sink,
        forms: Sequence[Form],
        tools: Sequence[Tool],
        reasoning: ReasoningFormat | None,
    ) -> None:
        self._reader, self._sink = reader, sink
        self._reasoning = reasoning
        self._tools = {tool.name: tool for tool in tools}
        self._at_start = [form for form in forms if form.at_start]
        self._by_trigger: dict[str, list[Form]] = {}
        for form in forms:
            if not form.at_start:
                self._by_trigger.setdefault(form.trigger, []).append(form)
        self._ignored = () if reasoning is None else reasoning.between
        self._reopens: tuple[str, ...] = ()
        if reasoning is not None and reasoning.may_repeat:
            self._reopens = tuple(mark.strip() for mark in reasoning.open)

    def read(self, before: Thinking) -> Steps[None]:
        """Read the answer to its end."""
        trigger = ""
        if self._reasoning is not None:
            trigger = yield from self._read_reasoning(self._reasoning, before)
        yield from self._read_content(trigger)
        self._sink.end()

    def _read_reasoning(self, reasoning: ReasoningFormat, before: Thinking) -> Steps[str]:
        """Read the reasoning, if there is any; return the trigger of calls that ended it."""
        reader, sink = self._reader, self._sink
        if before is not Thinking.OPEN:
            reader.hold()
            yield from reader.space()
            opened = yield from self._skip_one(reasoning.open)
            if not opened:
                reader.rewind()
                reader.release()
                return ""
            reader.release()
        if reasoning.is_kept:
            sink.text(reasoning.open[0])
            return ""
        return (yield from self._read_thoughts(reasoning))

    def _read_thoughts(self, reasoning: ReasoningFormat) -> Steps[str]:
        """Read reasoning that has been opened; return the trigger of calls that ended it."""
        reader, sink = self._reader, self._sink
        sink.begin_reasoning()
        closes = [mark.strip() for mark in reasoning.close]
        triggers = list(self._by_trigger) if reasoning.ends_at_calls else []
        mark = yield from reader.until(Marks((*closes, *triggers)), sink.text)
        if not mark:
            return ""
        sink.end_reasoning()
        return mark if mark in triggers else ""

    def _read_content(self, trigger: str) -> Steps[None]:
        reader, sink = self._reader, self._sink
        marks = Marks((*self._by_trigger, *self._ignored, *self._reopens))
        may_start = bool(self._at_start)
        while True:
            if may_start:
                yield from self._read_at_start()
                may_start = False
            mark = trigger or (yield from reader.until(marks, sink.text))
            trigger = ""
            if not mark:
                return
            if mark in self._reopens and self._reasoning is not None:
                trigger = yield from self._read_thoughts(self._reasoning)
            elif mark in self._by_trigger:
                may_start = yield from self._read_marked(mark)

    def _read_at_start(self) -> Steps[None]:
        """Read calls that no mark announces, as long as there are some."""
        reader = self._reader
        if not (yield from reader.peek()):
            return
        for form in self._at_start:
            reader.hold()
            if (yield from self._try_form(form, form.opening)):
                return
            reader.rewind()
            reader.release()

    def _read_marked(self, mark: str) -> Steps[bool]:
        """Read the calls after their mark; return whether there are some, else it is text."""
        reader = self._reader
        forms = self._by_trigger[mark]
        for form in forms:
            reader.hold()
            if (yield from self._try_form(form, form.opening[1:])):
                return True
            if form is not forms[-1]:
                reader.rewind()
        self._sink.text(mark + reader.release())
        return False

    def _try_form(self, form: Form, opening: Sequence[str]) -> Steps[bool]:
        """Read the calls of one form; return whether there was a first call."""
        stop = stop_of([*form.call_end, *form.section_end])
        context = Context(self._tools, needs_known=form.at_start, stop=stop)
        num_before = self._sink.num_calls
        try:
            yield from self._reader.pieces(opening)
            yield from form.body.read(self._reader, self._sink, context)
        except MismatchError:
            if self._sink.num_calls == num_before:
                return False
        yield from self._read_more(form, context)
        return True

    def _read_more(self, form: Form, context: Context) -> Steps[None]:
        """Read what follows the first call of a form: its end, and more calls."""
        reader, sink = self._reader, self._sink
        while True:
            yield from self._skip_all(form.call_end)
            if form.section_end and (yield from self._skip_all(form.section_end)):
                return
            pieces = yield from self._pieces_before_next(form)
            if pieces is None:
                return
            reader.hold()
            try:
                yield from reader.pieces(pieces)
                yield from form.body.read(reader, sink, context)
            except MismatchError:
                sink.text(reader.release())
                return

    def _pieces_before_next(self, form: Form) -> Steps[tuple[str, ...] | None]:
        """Return the marks before another call of the same form; None if none can begin here."""
        reader = self._reader
        yield from self._space()
        character = yield from reader.peek()
        pieces = tuple(piece for piece in (form.separator, *form.call) if piece.strip())
        if not character or (form.trigger and not form.section and character != form.body.first):
            return None  # what follows, perhaps another call, is read like any text
        if pieces and (yield from reader.is_at(pieces[0].strip())):
            return pieces
        is_bare = character == form.body.first or (form.section and not pieces)
        return () if is_bare else None

    def _skip_all(self, pieces: Sequence[str]) -> Steps[bool]:
        """Read these marks if the first of them follows; return whether it did."""
        marks = [piece.strip() for piece in pieces if piece.strip()]
        if not marks:
            return False
        for index, mark in enumerate(marks):
            yield from self._space()
            if not (yield from self._reader.skip(mark)):
                return index > 0
        return True

    def _space(self) -> Steps[None]:
        """Read white space, which is text if text follows."""
        self._sink.text((yield from self._reader.space()))

    def _skip_one(self, marks: Sequence[str]) -> Steps[bool]:
        """Read one of these marks; return whether there was one."""
        for mark in marks:
            if (yield from self._reader.skip(mark.strip())):
                return True
        return False
