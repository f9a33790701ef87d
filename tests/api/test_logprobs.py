"""Log-probabilities are read where they are, however long the prompt before them is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from octavo.api.logprobs import PositionLogprobs
from octavo.api.outputs import Logprob
from octavo.core.plan import TokenLogprobs
from octavo.text.token_table import unpack
from octavo.text.tokenizer_files import tokenizer_from_directory
from tests.api.tiny import make_tokenizer_files


class Counted(Sequence[int]):
    """A prompt that counts how many of its tokens are read."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self.num_read = 0

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        found = self._tokens[index]
        self.num_read += len(found) if isinstance(found, list) else 1
        return found


def test_tokens_that_the_request_names_have_no_ranks() -> None:
    entry = TokenLogprobs(array("i", [5, 9, 5]), array("f", [-1.0, -2.0, -1.0]), 3)
    for are_likeliest, rank in ((True, 1), (False, None)):
        logprobs = PositionLogprobs([5], are_likeliest=are_likeliest)
        logprobs.put(0, [entry])
        for each in (logprobs, logprobs.copy()):
            assert each[0] == {5: Logprob(-1.0, 3), 9: Logprob(-2.0, rank)}


def test_the_next_token_is_read_without_those_before_it(tmp_path: Path) -> None:
    """A stream reads each token when it comes: all before it would be a square of the length."""
    make_tokenizer_files(tmp_path)
    tokenizer = tokenizer_from_directory(tmp_path)
    table = unpack(tokenizer.pack())
    text = "Grüße: 漢字 " * 40
    tokens = list(tokenizer.encode(text, add_special_tokens=False))
    prompt, answer = Counted(tokens), Counted(tokens)
    logprobs = PositionLogprobs(answer, prompt, table)
    zero = array("d", [0.0])
    logprobs.put(0, [TokenLogprobs(array("i", [token]), zero, 1) for token in tokens])
    pieces = []
    for place, token in enumerate(tokens):
        prompt.num_read = answer.num_read = 0
        (entry,) = logprobs[place : place + 1]
        assert entry is not None
        pieces.append(entry[token].decoded_token or "")
        assert prompt.num_read + answer.num_read < 12
    assert "".join(pieces) == text
