"""Bugs to plant into the shaders' texts, each with the case that must find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from benchmarks.vulkan import sources


class Bug(NamedTuple):
    """A change of one place of a shader's text."""

    name: str
    shader: str
    before: str
    after: str
    case: str


# What the comparison with the meaning finds.
WRONG = [
    Bug(
        "halves of words of bfloat16 are exchanged",
        "rows_bf16",
        "one << 16u, one & 0xffff0000u",
        "one & 0xffff0000u, one << 16u",
        "product BF16 13",
    ),
    Bug("a scale is another group's", "rows_q4_1", "(unit / 4u) * 5u", "0u", "product Q4_1 1536"),
    Bug(
        "high codes are the first",
        "rows_q4_1",
        "let shift = ((unit / 2u) % 2u) * 4u",
        "let shift = 4u - ((unit / 2u) % 2u) * 4u",
        "product Q4_1 32",
    ),
    Bug("a minimum is left out", "rows_q4_1", " + scale_and_minimum.y", "", "lookup Q4_1 96"),
    Bug("codes have no sign", "rows_q8_0", "unpack4xI8", "unpack4xU8", "lookup Q8_0 96"),
    Bug("codes begin in whole words", "rows_q8_0", "byte % 4u != 0u", "false", "product Q8_0 96"),
    Bug(
        "a scale begins in a whole word",
        "rows_q8_0",
        " >> ((group % 4u) * 8u)",
        "",
        "product Q8_0 128",
    ),
    Bug(
        "a part's first row is forgotten",
        "embed",
        "token - FIRST_OUTPUT, unit",
        "token, unit",
        "lookup Q8_0 in parts",
    ),
    Bug("epsilon is left out", "norm", " + EPS", "", "norm 576 offset"),
    Bug("the mean is over all lanes", "norm", "/ f32(WIDTH)", "/ 64.0", "norm 100"),
    Bug("heads have one place", "norm", "+ group.x * WIDTH", "", "norm of heads"),
    Bug("a unit is left out", "product", "unit = lane;", "unit = lane + LANES;", "product F32 37"),
    Bug("columns begin with the row", "product", "+ X_FIRST", "", "product Q4_1 32"),
    Bug("outputs of parts overlap", "product", "FIRST_OUTPUT + output", "output", "product mixed"),
    Bug(
        "a rotation turns the other way",
        "place",
        "select(1, -1, is_first)",
        "select(-1, 1, is_first)",
        "attention 9 of 3",
    ),
    Bug(
        "pairs are neighbours",
        "place",
        "dim % PAIRS, dim / 2u, INTERLEAVED",
        "dim / 2u, dim / 2u, INTERLEAVED",
        "attention partly rotated",
    ),
    Bug(
        "a cell is its neighbour's",
        "place",
        "+ position % BLOCK_SIZE) *",
        "+ (position + 1u) % BLOCK_SIZE) *",
        "attention 9 of 3",
    ),
    Bug(
        "all rows have the first table",
        "place",
        "batch[OWNERS_AT + row] * BLOCKS",
        "0u",
        "attention 9 of 3",
    ),
    Bug(
        "a later position is seen",
        "attend",
        "position + 1u - first",
        "position + 2u - first",
        "attention 9 of 3",
    ),
    Bug("scores have no scale", "attend", "score * SCALE", "score", "attention not rotated"),
    Bug(
        "queries are another KV head's",
        "attend",
        "(row * HEADS + head * PER_KV)",
        "(row * HEADS + head)",
        "attention 9 of 3",
    ),
    Bug("values are keys", "attend", "+ values + dim", "+ dim", "attention interleaved"),
    Bug("chunks have no factor", "merge", "sum += factor *", "sum +=", "attention 9 of 3"),
    Bug("the last chunk is left out", "merge", "/ CHUNK + 1u", "/ CHUNK", "attention 9 of 3"),
    Bug("a chunk too many is added", "merge", "/ CHUNK + 1u", "/ CHUNK + 2u", "attention 9 of 3"),
    Bug(
        "selected rows are the first",
        "merge",
        "row = batch[SELECTED_AT + row]",
        "row += 0u",
        "attention 9 of 3",
    ),
    Bug("SiLU is a sigmoid", "gate", "gate / (", "1.0 / (", "gate 65"),
    Bug("a column is added to itself", "add", "Y_FIRST", "X_FIRST", "add 63"),
    Bug("rows are not selected", "select", "batch[SELECTED_AT + id.y]", "id.y", "add 63"),
    Bug(
        "the last of equals is drawn",
        "best_of_part",
        "other.y < one.y",
        "other.y > one.y",
        "drawn of 3000",
    ),
    Bug(
        "a NaN is a number",
        "best_of_part",
        "(bits & INFINITE) == INFINITE",
        "false",
        "drawn of 3000",
    ),
    Bug(
        "zeros differ by their sign",
        "best_of_part",
        "bits == 0x80000000u",
        "false",
        "drawn of 1023",
    ),
    Bug("negative logits are unordered", "best_of_part", "~bits", "bits", "drawn of 1023"),
    Bug("parts beyond 64 are left out", "best_of_row", "part = me", "part = me + 1u", "drawn of 1"),
    Bug("a carry is lost", "hash", " + u32(low < a.x)", "", "noise"),
    Bug("a product of 64 bits has 32", "hash", "high_product(a.x, b.x) + ", "", "noise"),
    Bug(
        "scores have no error",
        "screen_scores",
        "let error = ERROR + RELATIVE_ERROR * abs(scaled);",
        "let error = 0.0;",
        "draws of 50",
    ),
    Bug(
        "noise near its end is cut off",
        "screen_scores",
        "0xe0000000u",
        "0xffffffffu",
        "noise in float32",
    ),
    Bug(
        "tokens of other parts may be larger",
        "screen_chosen",
        "part < PARTS",
        "part < 1u",
        "draws of 2500",
    ),
    Bug(
        "rows have one temperature", "screen_scores", "inverses[row]", "inverses[0]", "draws of 50"
    ),
]

# What unwritten memory finds, which is NaN: reads and writes beyond a row or an array.
BOUNDS = [
    Bug(
        "a table writes whole units", "embed", "if (column < INPUTS)", "if (true)", "lookup BF16 13"
    ),
    Bug(
        "inputs are read in whole units",
        "product",
        "if (INPUTS % 8u == 0u || column + 4u <= INPUTS)",
        "if (true)",
        "product F32 37",
    ),
    Bug("a row too many is written", "product", "&& first_row + r < rows", "", "product BF16 13"),
    Bug(
        "outputs too many are written",
        "product",
        "if (lane == 0u && output < OUTPUTS)",
        "if (lane == 0u)",
        "product F32 37",
    ),
    Bug("a sum has a column too many", "add", "id.x >= WIDTH", "id.x > WIDTH", "add 63"),
    Bug("a gate has a column too many", "gate", "id.x >= WIDTH", "id.x > WIDTH", "gate 1"),
    Bug("a chosen row has a column too many", "select", "id.x >= WIDTH", "id.x > WIDTH", "add 63"),
    Bug(
        "unseen cells are read",
        "attend",
        "min(CHUNK, position + 1u - first)",
        "CHUNK",
        "attention 9 of 3",
    ),
    Bug(
        "tokens beyond the vocabulary are drawn from",
        "best_of_part",
        "min(VOCABULARY, (group.x + 1u) * 1024u)",
        "(group.x + 1u) * 1024u",
        "drawn of 1023",
    ),
]

# What the order of invocations finds: lavapipe runs those of a workgroup eight at a time.
_BARRIER = "workgroupBarrier();"
RACES = [
    Bug("a norm's sums are not waited for", "norm", "{\n        " + _BARRIER, "{", "norm 100"),
    Bug(
        "a product's sums are not waited for",
        "product",
        "{\n        " + _BARRIER,
        "{",
        "product Q4_1 1536",
    ),
    Bug(
        "places are not waited for",
        "attend",
        _BARRIER + "\n    for (var i = me; i < PER_KV * count",
        "for (var i = me; i < PER_KV * count",
        "attention 9 of 3",
    ),
    Bug(
        "scores are not waited for",
        "attend",
        _BARRIER + "\n    let to",
        "let to",
        "attention 9 of 3",
    ),
    Bug(
        "weights are not waited for",
        "attend",
        _BARRIER + "\n    let values",
        "let values",
        "attention not rotated",
    ),
    Bug(
        "tokens of a part are not waited for",
        "best_of_part",
        "{\n        " + _BARRIER,
        "{",
        "drawn of 3000",
    ),
    Bug(
        "floors of a part are not waited for",
        "screen_scores",
        "{\n        " + _BARRIER,
        "{",
        "draws of 2500",
    ),
]
BUGS = [*WRONG, *BOUNDS, *RACES]


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a bug into a shader's text for a while."""
    right = sources.text(bug.shader)
    assert right.count(bug.before) >= 1, "the bug's place is no longer in the shader"
    wrong = right.replace(bug.before, bug.after)
    texts = sources.text
    with mock.patch.object(
        sources, "text", lambda name: wrong if name == bug.shader else texts(name)
    ):
        yield
