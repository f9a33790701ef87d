"""The deltas of a stream add up to the whole text, and emitted text is never taken back."""

import json
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from octavo.text.token_bytes import TokenizerError, byte_alphabet, read_spelling
from octavo.text.tokenizer import Tokenizer
from tests.text.texts import SAMPLES
from tests.text.vocabularies import byte_fallback, byte_level, ids_up_to, spelled

BYTE_LEVEL = Tokenizer(byte_level(spelled(words=True), None, ignore_merges=False))
BYTE_FALLBACK = Tokenizer(byte_fallback())
REPLACEMENT = "\ufffd"


def _with_decoder(decoder: decoders.Decoder | None) -> Tokenizer:
    """Return a tokenizer of whole words, with added tokens of both kinds."""
    words = ["▁one", "two", "▁▁three", "▁", "é", "<0xC3>", "<0xA9>", "<0x20>", "four▁"]
    vocab = {word: index for index, word in enumerate(words)}
    backend = Backend(models.BPE(vocab, [], byte_fallback=True))
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("▁<x>")])
    backend.add_tokens([AddedToken("<a b>"), AddedToken("<c▁>")])
    return Tokenizer(backend)


OTHERS = {
    "metaspace": _with_decoder(decoders.Metaspace()),
    "metaspace without a prefix": _with_decoder(decoders.Metaspace(prepend_scheme="never")),
    "bytes and metaspace": _with_decoder(
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ),
    "two spaces stripped": _with_decoder(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)])
    ),
    "words joined by spaces": _with_decoder(None),
}
ALL = {"byte level": BYTE_LEVEL, "byte fallback": BYTE_FALLBACK, **OTHERS}

kinds = st.sampled_from(sorted(ALL))


@st.composite
def streams(draw: st.DrawFn) -> tuple[Tokenizer, list[int]]:
    """Draw a tokenizer and ids of it, including bytes that are not text."""
    tokenizer = ALL[draw(kinds)]
    every = st.sampled_from(ids_up_to(tokenizer.backend))
    some = st.sampled_from(range(16))
    return tokenizer, draw(st.lists(every | some, max_size=24))


@given(streams(), st.booleans(), st.booleans())
def test_deltas_add_up_to_the_text(
    stream: tuple[Tokenizer, list[int]], skip: bool, spaces: bool
) -> None:
    tokenizer, ids = stream
    whole = tokenizer.decode(ids, skip_special_tokens=skip, spaces_between_special_tokens=spaces)
    detokenizer = tokenizer.detokenizer(
        skip_special_tokens=skip, spaces_between_special_tokens=spaces
    )
    deltas = [detokenizer.push(token_id) for token_id in ids]
    assert "".join(deltas) + detokenizer.finish() == whole
    # The emitted text is always a prefix of the text so far: the stream holds back only an
    # incomplete character, which becomes marks at the end.
    for count, emitted in enumerate(accumulate(deltas), 1):
        so_far = tokenizer.decode(
            ids[:count], skip_special_tokens=skip, spaces_between_special_tokens=spaces
        )
        assert so_far.startswith(emitted)
        assert set(so_far[len(emitted) :]) <= {REPLACEMENT}


@given(streams(), st.booleans(), st.booleans())
def test_looking_ahead_shows_what_comes_and_changes_nothing(
    stream: tuple[Tokenizer, list[int]], skip: bool, spaces: bool
) -> None:
    tokenizer, ids = stream
    plain, looking = (
        tokenizer.detokenizer(skip_special_tokens=skip, spaces_between_special_tokens=spaces)
        for _ in range(2)
    )
    for token_id in ids:
        for other in {*ids, 0}:
            looking.peek(other)
        seen = looking.peek(token_id)
        added = plain.push(token_id)
        assert looking.push(token_id) == added
        if token_id in tokenizer.special_ids and skip:
            assert seen.encode() == tokenizer.token_bytes(token_id)
        else:
            assert seen == added
    assert looking.finish() == plain.finish()


@given(streams(), st.integers(0, 24), st.booleans(), st.booleans())
def test_a_stream_continues_its_context(
    stream: tuple[Tokenizer, list[int]], cut: int, skip: bool, spaces: bool
) -> None:
    tokenizer, ids = stream
    context, rest = ids[:cut], ids[cut:]
    whole = tokenizer.detokenizer(skip_special_tokens=skip, spaces_between_special_tokens=spaces)
    for token_id in context:
        whole.push(token_id)
    resumed = tokenizer.detokenizer(
        skip_special_tokens=skip, spaces_between_special_tokens=spaces, context=context
    )
    for token_id in rest:
        assert resumed.push(token_id) == whole.push(token_id)
    assert resumed.finish() == whole.finish()


@given(st.lists(st.sampled_from(ids_up_to(BYTE_LEVEL.backend)), max_size=24), st.booleans())
def test_byte_level_decoding_is_the_reference_one(ids: list[int], skip: bool) -> None:
    reference = BYTE_LEVEL.backend.decode(ids, skip_special_tokens=skip)
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=skip) == reference


@pytest.mark.parametrize("name", [name for name in ALL if name != "byte level"])
@given(data=st.data(), skip=st.booleans())
def test_decoding_is_the_reference_one_where_bytes_are_text(
    name: str, data: st.DataObject, skip: bool
) -> None:
    # The reference marks all bytes of a run as soon as one of them is not text, so a stream would
    # have to hold back the rest of the run. We mark one byte at a time, as SentencePiece does.
    tokenizer = ALL[name]
    ids = data.draw(st.lists(st.sampled_from(ids_up_to(tokenizer.backend)), max_size=24))
    text = tokenizer.decode(ids, skip_special_tokens=skip)
    reference = tokenizer.backend.decode(ids, skip_special_tokens=skip)
    if REPLACEMENT not in reference:
        assert text == reference
    assert text.strip(" ").count(REPLACEMENT) <= reference.strip(" ").count(REPLACEMENT)


@given(st.binary(max_size=12))
def test_invalid_bytes_are_marked_by_the_rule_of_the_vocabulary(raw: bytes) -> None:
    assert BYTE_LEVEL.decode(_byte_ids(BYTE_LEVEL, raw)) == raw.decode("utf-8", "replace")
    # SentencePiece marks each invalid byte.
    marked, rest = "", raw
    while rest:
        size = next((size for size in (1, 2, 3, 4) if _is_character(rest[:size])), 0)
        marked += rest[:size].decode("utf-8") if size else REPLACEMENT
        rest = rest[size or 1 :]
    text = BYTE_FALLBACK.decode(_byte_ids(BYTE_FALLBACK, raw))
    assert text == marked.removeprefix(" ")


def _byte_ids(tokenizer: Tokenizer, raw: bytes) -> list[int]:
    spelled = {byte: character for character, byte in byte_alphabet().items()}
    names = [spelled[byte] if tokenizer is BYTE_LEVEL else f"<0x{byte:02X}>" for byte in raw]
    ids = [tokenizer.token_to_id(name) for name in names]
    assert None not in ids
    return [token_id for token_id in ids if token_id is not None]


def _is_character(raw: bytes) -> bool:
    try:
        return len(raw.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK])
def test_text_comes_back_and_never_in_half_characters(tokenizer: Tokenizer) -> None:
    for text in SAMPLES:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if REPLACEMENT not in text:
            detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
            assert not any(REPLACEMENT in detokenizer.push(token_id) for token_id in ids)
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        # The text differs only after added tokens: a space follows each.
        assert decoded.replace("<s> ", "<s>").replace("</s> ", "</s>") == text


def test_a_character_that_the_prompt_begins_is_part_of_the_stream() -> None:
    for tokenizer in (BYTE_LEVEL, BYTE_FALLBACK):
        *begun, last = _byte_ids(tokenizer, "🦙".encode())
        prompt = tokenizer.encode("Hi ", add_special_tokens=False)
        stream = tokenizer.detokenizer(context=[*prompt, *begun])
        assert stream.push(last) == "🦙"
        assert stream.finish() == ""


def test_the_first_space_stays_after_a_prompt() -> None:
    ids = BYTE_FALLBACK.encode("the the", add_special_tokens=False)
    assert BYTE_FALLBACK.decode(ids) == "the the"
    stream = BYTE_FALLBACK.detokenizer(context=ids)
    assert "".join(map(stream.push, ids)) == " the the"
    # A prompt without visible tokens does not count as text before the stream.
    bos = BYTE_FALLBACK.token_to_id("<s>")
    assert bos is not None
    stream = BYTE_FALLBACK.detokenizer(context=[bos])
    assert "".join(map(stream.push, ids)) == "the the"
    stream = BYTE_FALLBACK.detokenizer(context=[bos], skip_special_tokens=False)
    assert "".join(map(stream.push, ids)) == " the the"


def test_spaces_between_special_tokens_concern_words_that_spaces_join() -> None:
    words = OTHERS["words joined by spaces"]
    ids = [words.token_to_id(token) or 0 for token in ("two", "<a b>", "<s>", "two", "two")]
    assert words.decode(ids, skip_special_tokens=False) == "two <a b> <s> two two"
    joined = words.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert joined == "two <a b><s> two two"
    # A stream takes the end of its context into account.
    for cut in range(1, len(ids)):
        parts = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
        stream = words.detokenizer(context=ids[:cut], **parts)
        text = "".join(map(stream.push, ids[cut:]))
        assert words.decode(ids[:cut], **parts) + text == joined


def test_only_the_ends_of_a_long_context_are_read() -> None:
    class Ends(list[int]):
        num_read = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            for item in super().__iter__():
                self.num_read += 1
                yield item

        def __reversed__(self):  # type: ignore[no-untyped-def]
            for item in super().__reversed__():
                self.num_read += 1
                yield item

    context = Ends(BYTE_FALLBACK.encode("the and that with " * 500))
    BYTE_FALLBACK.detokenizer(context=context)
    assert context.num_read < 12


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Fuse(), decoders.WordPiece()]),
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Strip(" ", 1, 0),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0), decoders.Strip("a", 1, 0)]),
        decoders.Sequence([decoders.Replace("a", "b"), decoders.ByteLevel()]),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_rejected(decoder: decoders.Decoder) -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    backend.decoder = decoder
    with pytest.raises(TokenizerError, match="cannot be streamed") as refused:
        read_spelling(backend)
    last = json.loads(decoder.__getstate__()).get("decoders", [{}])[-1].get("type", "")
    assert last in str(refused.value)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_an_impossible_id_is_rejected(token_id: int) -> None:
    with pytest.raises(TokenizerError, match="is not a token id"):
        BYTE_LEVEL.decode([token_id])
