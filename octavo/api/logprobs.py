"""Log-probabilities as users read them, made from the engine's arrays when they are read.

A long prompt, or many samples with twenty likely tokens at each position, would be millions of
objects. The arrays take a tenth of their memory, and a reader may take them in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from octavo.api.outputs import Logprob
from octavo.core.plan import TokenLogprobs
from octavo.text.detokenizer import Detokenizer
from octavo.text.token_table import TokenTable

Entry = dict[int, Logprob] | None  # of one position; None for the first of a prompt


class PositionLogprobs(Sequence[Any]):
    """The log-probabilities at each of some tokens: its own first, then the likeliest.

    The text of a token is what it adds to those before it, `context` and the earlier ones of
    `tokens`. Without a tokenizer the entries have no texts.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        context: Sequence[int] = (),
        tokenizer: TokenTable | None = None,
        *,
        skip_special_tokens: bool = False,
        spaces_between_special_tokens: bool = True,
        are_likeliest: bool = True,  # else tokens that the request names, whose ranks are unknown
    ) -> None:
        self._are_likeliest = are_likeliest
        self._tokens = tokens  # its owner may add to it
        self._context = context
        self._tokenizer = tokenizer
        self._options: dict[str, Any] = {
            "skip_special_tokens": skip_special_tokens,
            "spaces_between_special_tokens": spaces_between_special_tokens,
        }
        self._entries: list[TokenLogprobs | None] = []
        self._ending = ""

    def put(self, place: int, entries: Sequence[TokenLogprobs]) -> None:
        """Store the entries of positions from `place` on; those before have been stored or None."""
        self._entries.extend([None] * (place - len(self._entries)))
        self._entries[place : place + len(entries)] = entries

    def end(self, text: str) -> None:
        """Add to the last token's text the mark of a character that stays incomplete."""
        self._ending = text

    def copy(self) -> PositionLogprobs:
        """Return a copy that later entries do not change."""
        made = PositionLogprobs(
            self._tokens[: len(self)],
            self._context,
            self._tokenizer,
            are_likeliest=self._are_likeliest,
            **self._options,
        )
        made._entries, made._ending = self._entries[:], self._ending
        return made

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return list(self._read(start, stop))
            return [self[place] for place in range(start, stop, step)]
        place = range(len(self))[index]
        return next(self._read(place, place + 1))

    def __iter__(self) -> Iterator[Entry]:
        return self._read(0, len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return NotImplemented
        return all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _read(self, start: int, stop: int) -> Iterator[Entry]:
        stream = self._stream(start)
        for place in range(start, stop):
            entry = self._entries[place]
            explained = None if entry is None else explain(entry, stream, self._are_likeliest)
            if stream is not None:
                token = self._tokens[place]
                stream.push(token)
                if explained is not None and self._ending and place == len(self) - 1:
                    said = explained[token]
                    text = f"{said.decoded_token}{self._ending}"
                    explained[token] = said._replace(decoded_token=text)
            yield explained

    def _stream(self, start: int) -> Detokenizer | None:
        """Return the stream of the text, as it is before a position."""
        if self._tokenizer is None:
            return None
        before = _Before(self._context, self._tokens, start)
        return self._tokenizer.detokenizer(context=before, **self._options)


class _Before(Sequence[int]):
    """The tokens before a position, not copied: a stream reads them only at their two ends."""

    def __init__(self, context: Sequence[int], tokens: Sequence[int], stop: int) -> None:
        self._context = context
        self._tokens = tokens
        self._length = len(context) + stop

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        places = range(self._length)[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        behind = places - len(self._context)
        return self._tokens[behind] if behind >= 0 else self._context[places]


def explain(
    entry: TokenLogprobs, stream: Detokenizer | None, are_likeliest: bool
) -> dict[int, Logprob]:
    """Return the log-probabilities at a position whose tokens continue what `stream` has read."""
    named: dict[int, Logprob] = {}
    pairs = zip(entry.token_ids, entry.logprobs, strict=True)
    for place, (token, logprob) in enumerate(pairs):
        if token not in named:  # the first may be among the likeliest too
            text = None if stream is None else stream.peek(token)
            rank: int | None = entry.rank
            if place:
                rank = place if are_likeliest else None
            named[token] = Logprob(logprob, rank, text)
    return named
