"""The fast search for all strings of an array, and the arrays that it must decline."""

import struct

import numpy as np
import pytest

from octavo.loader.gguf.strings import find_lengths, split, split_pairs


def stored(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def words(count: int, seed: int = 0, longest: int = 12) -> list[bytes]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest + 1, count)
    return [generator.integers(1, 256, length, np.uint8).tobytes() for length in lengths]


@pytest.mark.parametrize("longest", [1, 7, 12, 255])
@pytest.mark.parametrize("behind", [b"", bytes(100), b"\1" + bytes(7) + b"x"])
def test_all_strings_are_found_at_any_offset(longest: int, behind: bytes) -> None:
    texts = words(500, longest=longest)
    before = bytes(37)
    places = find_lengths(before + stored(texts) + behind, len(before), len(texts))
    assert places is not None
    assert places[-1] == len(stored(texts))
    assert split(before + stored(texts), len(before), places) == texts
    valid = [text.decode("latin-1") for text in texts]
    encoded = [text.encode()[:255] for text in valid]
    places = find_lengths(stored(encoded), 0, len(texts))
    if longest < 128:
        assert places is not None
        assert split(stored(encoded), 0, places) == valid


def pairs_in(texts: list[bytes]) -> list[tuple[str, str]] | None:
    before = b"\x20" * 9
    places = find_lengths(before + stored(texts), len(before), len(texts))
    assert places is not None
    return split_pairs(before + stored(texts), len(before), places)


def test_pairs_are_the_words_around_a_space() -> None:
    pairs = [("ä" * (1 + index % 9), "x" * (1 + index % 70)) for index in range(300)]
    texts = [f"{one} {other}".encode() for one, other in pairs]
    assert {len(text) for text in texts} >= {0x20}, "a length that is the number of a space"
    assert pairs_in(texts) == pairs


@pytest.mark.parametrize("odd", [b"none", b" x", b"x ", b" ", b"a b c", b"a  b", b"\xff a"])
@pytest.mark.parametrize("index", [0, 40, 99])
def test_texts_that_are_no_pairs_are_left_to_the_slow_reader(odd: bytes, index: int) -> None:
    texts = [b"one other"] * 100
    texts[index] = odd
    assert pairs_in(texts) is None
    texts[index - 1] = b"oneother"  # as many spaces as texts, where the odd one has two
    assert pairs_in(texts) is None


@pytest.mark.parametrize(
    "odd", [b"", b"x" * 256, b"x" * 300, b"\0", b"a\0b", b"\0" * 8, b"end\0", b"\0x"]
)
@pytest.mark.parametrize("index", [0, 40, 99])
def test_unusual_strings_are_left_to_the_slow_reader(odd: bytes, index: int) -> None:
    texts = words(100)
    texts[index] = odd
    assert find_lengths(stored(texts), 0, len(texts)) is None


def test_strings_past_the_end_are_not_found() -> None:
    whole = stored(words(100))
    assert find_lengths(whole, 0, 101) is None
    for cut in (1, 5, len(whole) // 2):
        assert find_lengths(whole[:-cut], 0, 100) is None


@pytest.mark.parametrize("seed", range(20))
def test_damaged_lengths_never_give_wrong_places(seed: int) -> None:
    """Each place that the search returns follows from the length before it."""
    generator = np.random.default_rng(seed)
    damaged = bytearray(stored(words(80, seed)))
    for at in generator.integers(0, len(damaged), 3):
        damaged[at] = generator.integers(0, 256)
    places = find_lengths(bytes(damaged), 0, 80)
    if places is None:
        return
    position = 0
    for place in places[:-1]:
        assert place == position
        position += 8 + struct.unpack_from("<Q", damaged, position)[0]
    assert position == places[-1] <= len(damaged)
