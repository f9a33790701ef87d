"""The search for stop strings in a stream of text, independent of how the stream is split."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """A filter that passes on the text before the first stop string.

    The match that is complete first wins: generation stops as soon as the text holds any stop
    string. If two are complete at the same character, the longer one, which starts first, wins.
    The result is that of a search in the whole text, however it is split into chunks.

    Only text that may yet turn out to begin a stop string is held back. With `include`, the stop
    string itself is passed on too, so nothing has to be held back.
    """

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        if not all(strings):
            raise ValueError("a stop string must not be empty: it would stop at once")
        # The longest comes first, since it wins a tie.
        self._searches = [_Search(string) for string in sorted(set(strings), key=len, reverse=True)]
        self._first_characters = frozenset(string[0] for string in strings)
        self._includes = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Return the text that can be passed on now; `matched` is set if a stop string ends it.

        With `may_stop=False` a stop string that ends within `text` is ordinary text (a request
        may ask for a minimum of tokens). After a match all further text is dropped.
        """
        if not self._searches:
            return text
        if self.matched is not None:
            return ""
        if not self._held and self._is_idle and self._first_characters.isdisjoint(text):
            return text
        text = self._held + text
        for position in range(len(self._held), len(text)):
            for search in self._searches:
                if search.advance(text[position]) and may_stop and self.matched is None:
                    self.matched = search.string
            if self.matched is not None:
                end = position + 1
                self._held = ""
                return text[: end if self._includes else end - len(self.matched)]
        return self._pass_on(text)

    def finish(self) -> str:
        """Return the text that was held back, after a stream that ended without a match."""
        text, self._held = self._held, ""
        return text

    @property
    def _is_idle(self) -> bool:
        return not any(search.num_matched for search in self._searches)

    def _pass_on(self, text: str) -> str:
        """Hold back the longest end of `text` that begins a stop string."""
        num_held = max((search.num_matched for search in self._searches), default=0)
        if self._includes:
            num_held = 0
        cut = len(text) - num_held
        self._held = text[cut:]
        return text[:cut]


class _Search:
    """The length of the longest start of one string that ends the text (Knuth, Morris, Pratt)."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.num_matched = 0
        # For each number of matched characters, the next smaller number that also matches.
        self._shorter = [0, 0]
        for position in range(1, len(string)):
            self._shorter.append(self._longer(self._shorter[position], string[position]))

    def advance(self, character: str) -> bool:
        """Add the next character of the text, and return whether it completes the string."""
        matched = self._longer(self.num_matched, character)
        is_complete = matched == len(self.string)
        # A complete match does not begin another one, but its own end may.
        self.num_matched = self._shorter[matched] if is_complete else matched
        return is_complete

    def _longer(self, num_matched: int, character: str) -> int:
        while num_matched and self.string[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + (self.string[num_matched] == character)
