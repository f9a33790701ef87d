"""The collector of deltas: white space around calls and reasoning is left out, neighbours join."""

from __future__ import annotations

from octavo.formats.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.formats.reader import SPACE


class Sink:
    """The deltas that a parser has completed and that have not been taken yet."""

    __slots__ = (
        "_deltas",
        "_drops_space",
        "_has_text",
        "_is_after_call",
        "_max_calls",
        "_may_have_text",
        "_num_calls",
        "_space",
        "is_reasoning",
    )

    def __init__(self, max_calls: int | None = None, *, has_text: bool = True) -> None:
        self._may_have_text = has_text  # beside calls and reasoning
        self._deltas: list[Delta] = []
        self._space: list[str] = []  # white space that is text only if text follows
        self._drops_space = False  # at the beginning of a part
        self._has_text = False  # in this part
        self._is_after_call = False
        self._max_calls = max_calls
        self._num_calls = 0
        self.is_reasoning = False

    def take(self) -> list[Delta]:
        """Return the deltas, and forget them."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def begin_reasoning(self) -> None:
        """Let what follows be reasoning."""
        self._turn(is_reasoning=True)

    def end_reasoning(self) -> None:
        """Let what follows be the answer."""
        self._turn(is_reasoning=False)

    def text(self, text: str) -> None:
        """Add to the answer's text, or to the reasoning."""
        if not (self._may_have_text or self.is_reasoning):
            return
        if self._drops_space:
            text = text.lstrip(SPACE)
            self._drops_space = not text
        kept = text.rstrip(SPACE)
        if not kept:
            self._space.append(text)
            return
        if self._space:
            kept = "".join((*self._space, kept))
            self._space.clear()
        self._put(kept)
        if text[-1] in SPACE:
            self._space.append(text[len(text.rstrip(SPACE)) :])

    def call(self, name: str, call_id: str | None = None) -> None:
        """Begin a call of this function; its arguments follow."""
        self._is_after_call = True
        self._drops_space = bool(self._space) or not self._has_text  # one of both sides is enough
        if not self._has_text:
            self._space.clear()
        self._num_calls += 1
        if self._is_wanted:
            delta = ToolCallDelta(self._num_calls - 1, name=name, call_id=call_id)
            self._deltas.append(delta)

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that came last."""
        if not text or not self._is_wanted:
            return
        index = self._num_calls - 1
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, ToolCallDelta) and last.index == index:
            last.arguments += text
        else:
            self._deltas.append(ToolCallDelta(index, text))

    def end(self) -> None:
        """Add the white space at the end of the answer, which belongs to its text."""
        if self._space and not self.is_reasoning and not self._is_after_call:
            self._put("".join(self._space))
        self._space.clear()

    @property
    def num_calls(self) -> int:
        """The number of calls that have begun."""
        return self._num_calls

    @property
    def _is_wanted(self) -> bool:
        """The rule for the last call: False if the answer may not have so many."""
        return self._max_calls is None or self._num_calls <= self._max_calls

    def _turn(self, *, is_reasoning: bool) -> None:
        self.is_reasoning = is_reasoning
        self._has_text = self._is_after_call = False
        self._space.clear()
        self._drops_space = True

    def _put(self, text: str) -> None:
        self._has_text, self._is_after_call = True, False
        kind = ReasoningDelta if self.is_reasoning else TextDelta
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, kind):
            last.text += text
        else:
            self._deltas.append(kind(text))
