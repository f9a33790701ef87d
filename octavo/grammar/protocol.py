"""The protocol of grammar engines: compile, accept, mask, roll back, forced tokens.

A grammar's state is a function of its text and of the accepted tokens alone, so that it can be
built again after a preemption or a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Words = NDArray[np.uint32]

# A line of a grammar that a client wrote: forced text is not looked for in it. An ambiguous grammar
# can force text without an end, and the library would follow it without a bound.
DRAWN = "// all tokens are drawn"

# Text that must come next: only its canonical tokenisation is allowed; or tokens that are the only
# ones allowed are not drawn; or all are drawn.
Forcing = Literal["canonical", "single", "off"]
FORCINGS: tuple[Forcing, ...] = get_args(Forcing)


NO_TEXT = "no text has this shape"


class GrammarError(ValueError):
    """A grammar that cannot be used, or cannot go on; the message says why.

    `line` is the line of its text that is wrong, if one is.
    """

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line

    @property
    def is_empty(self) -> bool:
        """True if the grammar is valid, but no text matches it."""
        return str(self).startswith(NO_TEXT)


class Vocabulary(Struct, frozen=True):
    """The tokens of a model, as grammars see them."""

    tokens: Sequence[bytes]  # by id; empty for an id without text
    special: frozenset[int]  # tokens that no text spells
    end_ids: frozenset[int]  # allowed where a text may end
    encode: Callable[[str], Sequence[int]]  # the model's own tokenisation


class Matcher(Protocol):
    """The state of one text in a grammar."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Take the next tokens; raise GrammarError if one of them may not come."""

    def num_accepted(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may come next, one after the other; take none."""

    def roll_back(self, count: int) -> None:
        """Take the last `count` accepted tokens back."""

    def forced(self, most: int) -> list[int]:
        """Return the tokens that must come next, at most so many and without end tokens.

        Each is the only one that the mask of its place allows. Take none.
        """

    def fill(self, row: Words) -> None:
        """Write the packed bits of the tokens that may come next; raise GrammarError if it fails.

        Bit t % 32 of word t // 32 is token t. Where the text may end, the model's end tokens are
        among them; where it must end, they are all.
        """

    def copy(self) -> Matcher:
        """Return a matcher in the same state."""


class GrammarEngine(Protocol):
    """A compiler of grammars for one vocabulary. Threads may compile at once."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a text; a matcher accepts none of them."""

    @property
    def num_words(self) -> int:
        """The words of a mask: one for every 32 tokens."""

    def compile(self, text: str) -> Matcher:
        """Return a matcher at the beginning of a text; raise GrammarError if it is no grammar."""

    def fill_all(
        self, rows: Words, work: Sequence[tuple[Matcher, int]]
    ) -> list[BaseException | None]:
        """Fill a row for each matcher, perhaps in several threads; return the errors of each."""

    def forget(self) -> None:
        """Free what is kept for further texts."""
