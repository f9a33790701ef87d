"""Stop strings are found as in the whole text, however it is split into chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.stop_strings import StopStrings

# Few letters, so that strings overlap with themselves and with one another.
texts = st.text("abc", max_size=40) | st.text("ab", max_size=40)
stops = st.lists(st.text("abc", min_size=1, max_size=6), max_size=4)
chunkings = st.lists(st.integers(1, 7), max_size=40)


def _chunks(text: str, sizes: list[int]) -> list[str]:
    chunks, start = [], 0
    for size in [*sizes, len(text)]:
        chunks.append(text[start : start + size])
        start += size
    return chunks


def _searched(text: str, strings: list[str], include: bool, ignored: int) -> tuple[str, str | None]:
    """Search the whole text: the first match to end beyond `ignored`, and of these the longest."""
    matches = [
        (end, -len(string), string)
        for string in strings
        for end in range(max(len(string), ignored + 1), len(text) + 1)
        if text.endswith(string, 0, end)
    ]
    if not matches:
        return text, None
    end, _, string = min(matches)
    return text[: end if include else end - len(string)], string


@given(texts, stops, chunkings, st.booleans(), st.integers(0, 10))
def test_any_chunking_equals_a_search_in_the_whole(
    text: str, strings: list[str], sizes: list[int], include: bool, num_before: int
) -> None:
    search = StopStrings(strings, include=include)
    chunks = _chunks(text, sizes)
    emitted, received, ignored = "", "", 0
    for index, chunk in enumerate(chunks):
        emitted += search.push(chunk, may_stop=index >= num_before)
        received += chunk
        if index < num_before:
            ignored = len(received)
        if search.matched is None:
            _holds_back_no_more_than_it_must(received, emitted, strings, include)
    if search.matched is None:
        emitted += search.finish()
    assert (emitted, search.matched) == _searched(text, strings, include, ignored)


def _holds_back_no_more_than_it_must(
    received: str, emitted: str, strings: list[str], include: bool
) -> None:
    assert received.startswith(emitted)
    held = received[len(emitted) :]
    if include:
        assert held == ""
    longest = max(
        (
            size
            for string in strings
            for size in range(len(string))
            if received.endswith(string[:size])
        ),
        default=0,
    )
    assert len(held) == (0 if include else longest)


def test_the_first_to_be_complete_wins() -> None:
    # "bc" is complete while "abcd", which started earlier, may still fail.
    search = StopStrings(["abcd", "bc"])
    assert search.push("xabcd") == "xa"
    assert search.matched == "bc"


def test_the_longer_of_two_matches_with_one_end_wins() -> None:
    search = StopStrings(["bc", "abc"])
    assert search.push("xabc") == "x"
    assert search.matched == "abc"


def test_text_after_a_match_is_dropped() -> None:
    search = StopStrings(["b"])
    assert search.push("abc") == "a"
    assert search.push("more b") == ""
    assert search.finish() == ""


def test_text_that_cannot_begin_a_stop_string_passes_at_once() -> None:
    search = StopStrings(["\n\nUser:"])
    assert search.push("Hello\n") == "Hello"
    assert search.push("\nUse") == ""
    assert search.push("less") == "\n\nUseless"


def test_an_empty_stop_string_is_rejected() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(["a", ""])
