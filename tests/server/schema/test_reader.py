"""What is unknown or wrong is found by the types alone, a level of the value at a time."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Raw, Struct

from octavo.serving.schema import reader
from octavo.serving.schema.reader import MAX_STEPS, MAX_UNKNOWN_INSIDE, Reader, Search, Unknown
from octavo.transport.errors import ApiError


class Block(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a text, which may contain others."""

    text: Annotated[str, Meta(max_length=5, pattern="^[a-z]*$")] | None = None
    size: Annotated[int, Meta(ge=0, lt=10)] = 0
    weight: Annotated[float, Meta(gt=0)] = 1.0
    side: Literal["left", "right"] | None = None
    is_last: bool = False
    schema_: Annotated[dict[str, Any], Meta(max_length=2)] | None = msgspec.field(
        default=None, name="schema"
    )
    blocks: Annotated[list[Block], Meta(min_length=1, max_length=900)] | None = None


class Circle(Struct, kw_only=True, forbid_unknown_fields=True, tag="circle"):
    """One kind of a tagged union."""

    radius: int


class Square(Struct, kw_only=True, forbid_unknown_fields=True, tag="square"):
    """Another kind of it, with names beside which those of its block are wrong."""

    block: Block
    color: str | None = None


Forms = dict[Annotated[str, Meta(max_length=3)], Circle | Square]


def read(kind: Any, text: str | bytes) -> tuple[Any, list[Unknown]]:
    """Return a value and its unknown fields, as the reader of a type finds them."""
    search = Search()
    part = msgspec.json.decode(text, type=Raw)
    return Reader(kind).read(part, ("x",), search), search.unknown


WRONG: list[tuple[Any, Any, str]] = [
    (Block, [], "x"),
    (Block, {"text": 5}, "x.text"),
    (Block, {"text": "abcdef"}, "x.text"),
    (Block, {"text": "A"}, "x.text"),
    (Block, {"size": 10}, "x.size"),
    (Block, {"size": 2**80}, "x.size"),
    (Block, {"size": 1.5}, "x.size"),
    (Block, {"weight": 0}, "x.weight"),
    (Block, {"side": "middle"}, "x.side"),
    (Block, {"side": 5}, "x.side"),
    (Block, {"is_last": 0}, "x.is_last"),
    (Block, {"blocks": []}, "x.blocks"),
    (Block, {"schema": {"a": 1, "b": 2, "c": 3}}, "x.schema"),
    (Block, {"schema": {"a": [1, {"b": float("inf")}]}}, "x.schema.a"),
    (
        Block,
        {"blocks": [{}, {"blocks": [{"size": "a", "other": 1}]}]},
        "x.blocks[1].blocks[0].size",
    ),
    (Forms, {"abcd": {}}, "x"),
    (Forms, {"a": {}}, "x.a.type"),
    (Forms, {"a": {"type": 5}}, "x.a.type"),
    (Forms, {"a": {"type": "cube"}}, "x.a.type"),
    (Forms, {"a": {"type": "circle"}}, "x.a.radius"),
    (Forms, {"a": {"type": "square", "block": {}}, "b": {"type": "square"}}, "x.b.block"),
]


@pytest.mark.parametrize(("kind", "value", "param"), WRONG)
def test_the_wrong_value_is_named_with_its_path(kind: Any, value: Any, param: str) -> None:
    with pytest.raises(ApiError) as raised:
        read(kind, json.dumps(value).replace("Infinity", "1e400"))
    assert raised.value.param == param
    assert raised.value.message.startswith(param)


def test_numbers_and_lengths_are_named_with_their_bounds() -> None:
    for value, words in (
        ({"size": 10}, "integer < 10, got 10"),
        ({"size": -(10**70)}, "integer >= 0, got -1"),
        ({"weight": 0}, "number > 0.0, got 0"),
        ({"text": "abcdef"}, "string of length <= 5, got 6"),
        ({"side": "rigt"}, "one of 'left', 'right', got 'rigt'; did you mean 'right'?"),
        ({"blocks": [{}] * 901}, "array of length <= 900, got 901"),
    ):
        with pytest.raises(ApiError) as raised:
            read(Block, json.dumps(value))
        assert words in raised.value.message


def test_no_word_of_the_decoder_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the decoder's errors say, those of the server are the same."""

    class Mute:
        """A decoder that says no more than that a value is refused."""

        def __init__(self, kind: Any) -> None:
            self._decoder: Any = decoder(kind)

        def decode(self, text: Any) -> Any:
            try:
                return self._decoder.decode(text)
            except msgspec.ValidationError:
                raise msgspec.ValidationError from None

    decoder = msgspec.json.Decoder

    def messages() -> list[str]:
        found = []
        reader.fields_of.cache_clear()
        for kind, value, _ in WRONG:
            with pytest.raises(ApiError) as raised:
                read(kind, json.dumps(value).replace("Infinity", "1e400"))
            found.append(raised.value.message)
        return found

    expected = messages()
    monkeypatch.setattr(msgspec.json, "Decoder", Mute)
    assert messages() == expected
    monkeypatch.undo()
    reader.fields_of.cache_clear()


def test_names_that_belong_into_a_missing_field_are_named() -> None:
    with pytest.raises(ApiError) as raised:
        read(Square, '{"type": "square", "text": "a", "size": 1, "color": "red", "other": 5}')
    assert "size and text belong under block" in raised.value.message


def test_unknown_fields_are_found_at_every_depth() -> None:
    value, unknown = read(
        Forms,
        '{"a": {"type": "square", "one": 1, "block": {"blocks": [{"two": 2, "schema": {"n": 1}}]}},'
        ' "b": {"type": "circle", "radius": 3.0, "three": {}}}',
    )
    assert [each.path for each in unknown] == ["x.a.one", "x.a.block.blocks[0].two", "x.b.three"]
    assert unknown[0].known == ("block", "color")
    assert value == {
        "a": Square(block=Block(blocks=[Block(schema_={"n": 1})])),
        "b": Circle(radius=3),
    }


def test_the_number_of_unknown_fields_is_bounded() -> None:
    for number in (MAX_UNKNOWN_INSIDE, MAX_UNKNOWN_INSIDE + 1):
        blocks = [{"text": "a", **{str(name): 1 for name in range(512)}}] * (number // 512)
        text = json.dumps({"blocks": [*blocks, dict.fromkeys(map(str, range(number % 512)))]})
        if number == MAX_UNKNOWN_INSIDE:
            value, unknown = read(Block, text)
            assert len(unknown) == number
            assert value == Block(blocks=[Block(text="a")] * len(blocks) + [Block()])
            continue
        with pytest.raises(ApiError) as raised:
            read(Block, text)
        assert raised.value.param == "x"


def test_the_number_of_values_that_are_decoded_again_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value counts each time that it is decoded, and so do characters of strings."""
    inner = ['{"text": "a", "other": ",,"}', '{"other": [1, 2, 3]}']  # with four and four
    text = f'{{"blocks": [{", ".join(inner)}]}}'
    monkeypatch.setattr(reader, "MAX_DECODED_AGAIN", 11 + 10 + 4 + 4)
    assert len(read(Block, text)[1]) == 2
    monkeypatch.setattr(reader, "MAX_DECODED_AGAIN", 11 + 10 + 4 + 3)
    with pytest.raises(ApiError) as raised:
        read(Block, text)
    assert raised.value.param == "x"


def test_the_search_ends_at_a_depth() -> None:
    """Each level decodes all that is below it again."""
    most = (MAX_STEPS - 1) // 2  # with two steps for each, from the field

    def nested(number: int, inner: str) -> str:
        return '{"blocks": [' * number + inner + "]}" * number

    (found,) = read(Block, nested(most, '{"other": 1}'))[1]
    assert found.path == "x" + ".blocks[0]" * most + ".other"
    with pytest.raises(ApiError) as raised:
        read(Block, nested(most + 1, '{"other": 1}'))
    assert raised.value.param == "x"
    assert not read(Block, nested(most + 1, '{"size": 1}'))[1]
