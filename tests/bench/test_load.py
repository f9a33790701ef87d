"""What is sent: shapes that are drawn, traces and files that are read, and the words of prompts."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from pathlib import Path

import pytest

from octavo.bench.load import files, shapes, source, traces, writers
from octavo.bench.load.asked import Asked, Piece, Shape, with_adapters
from octavo.bench.load.source import Data, open_source
from octavo.core.config import ConfigError


def drawn(data: Data, seed: int = 3) -> list[Asked]:
    """Return the requests of a run, whose prompts are their token ids."""
    return open_source(data)(random.Random(seed), writers.token_ids(range(1000), str(seed)))


def test_random_prompts() -> None:
    lengths = shapes.Lengths(100, 20, 10, 0.5)
    data = Data("random", 50, lengths=lengths)
    asked = drawn(data)
    assert asked == drawn(data)
    assert asked != drawn(data, seed=4)
    sizes = [len(each.prompt) for each in asked]
    assert 10 + 50 <= min(sizes) < max(sizes) <= 10 + 150
    assert len({tuple(each.prompt[:10]) for each in asked}) == 1
    assert len({tuple(each.prompt[10:20]) for each in asked}) == 50
    assert all(10 <= each.max_tokens <= 30 for each in asked)


def test_prefixes_that_many_have() -> None:
    data = Data("prefix_repetition", 10, lengths=shapes.Lengths(5, 4, 8), num_prefixes=3)
    asked = drawn(data)
    assert [len(each.prompt) for each in asked] == [13] * 10
    assert len({tuple(each.prompt[:8]) for each in asked}) == 3
    assert len({tuple(each.prompt) for each in asked}) == 10


def test_words_are_as_many_as_the_tokens_say() -> None:
    write = writers.words(0.5, "a")
    text = write([Piece("x", 20), Piece("y", 1)])
    assert isinstance(text, str)
    assert len(text.split()) == 11
    longer = write([Piece("x", 40)])
    assert isinstance(longer, str)
    assert longer.split()[:10] == text.split()[:10]  # of the same key
    assert writers.words(0.5, "b")([Piece("x", 20)]) != write([Piece("x", 20)])


def test_shaped_like_sharegpt() -> None:
    """The means are near those of the paper; vLLM's limits hold."""
    found = shapes.like_sharegpt(4000, random.Random(0))
    prompts, answers = [each.prompt_tokens for each in found], [each.max_tokens for each in found]
    assert statistics.mean(prompts) == pytest.approx(161.31, rel=0.1)
    assert statistics.mean(answers) == pytest.approx(337.99, rel=0.1)
    assert min(prompts + answers) >= 4
    assert max(prompts) <= 1024
    assert all(each.prompt_tokens + each.max_tokens <= 2048 for each in found)
    (one,) = open_source(Data("sharegpt", 1, max_tokens=7))(random.Random(0), writers.words(1, ""))
    assert one.max_tokens == 7


def test_shaped_like_mooncake() -> None:
    """Lengths, rate, and the share of blocks that an earlier prompt had are near the paper's."""
    found = shapes.like_mooncake(3000, random.Random(0))
    assert statistics.mean(each.prompt_tokens for each in found) == pytest.approx(12_035, rel=0.1)
    assert statistics.mean(each.max_tokens for each in found) == pytest.approx(343, rel=0.1)
    times = [each.at or 0.0 for each in found]
    assert times == sorted(times)
    assert found[-1].at == pytest.approx(3000 * 3600 / 12_031, rel=0.1)
    seen: set[str] = set()
    shared = count = 0
    for each in found:
        keys = [piece.key for piece in each.pieces]
        new = next((at for at, key in enumerate(keys) if key not in seen), len(keys))
        assert not seen.intersection(keys[new:])  # what is shared is a beginning
        shared, count = shared + new, count + len(keys)
        seen.update(keys)
    assert shared / count == pytest.approx(0.40, abs=0.04)
    assert all(piece.tokens == 512 for each in found for piece in each.pieces[:-1])


def test_shaped_like_burstgpt() -> None:
    """Zipf's lengths below 1024, and gaps of a second in the mean that come in bursts."""
    found = shapes.like_burstgpt(8000, random.Random(0))
    lengths = [each.prompt_tokens for each in found]
    assert max(lengths) <= 1023
    ones, twos = lengths.count(1), lengths.count(2)
    assert ones / twos == pytest.approx(2**1.1, rel=0.15)
    times = [each.at or 0.0 for each in found]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1.0, rel=0.1)
    assert statistics.variance(gaps) == pytest.approx(2.0, rel=0.15)  # an even process has 1


MOONCAKE = [
    {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 9]},
    {"timestamp": 1000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 7]},
    {"timestamp": 4500, "input_length": 30, "output_length": 7},
]


def write_lines(path: Path, lines: list[object]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines), "utf-8")
    return path


def test_a_trace_of_mooncakes_form(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", [*MOONCAKE])
    asked = drawn(Data("mooncake", 1000, path))
    assert [(len(each.prompt), each.max_tokens, each.at) for each in asked] == [
        (1024, 6, 0.0),
        (1100, 5, 2.0),
        (30, 7, 3.5),
    ]
    assert asked[0].prompt == asked[1].prompt[:1024]
    assert asked[2].prompt != asked[0].prompt[:30]
    assert len(drawn(Data("mooncake", 2, path))) == 2  # the first lines, as many as are asked for


def test_vllms_name_for_it_has_vllms_units(tmp_path: Path) -> None:
    line = {"timestamp": 2, "input_length": 20, "output_length": 5, "hash_ids": ["a", "b"]}
    path = write_lines(tmp_path / "trace.jsonl", [{**line, "timestamp": 1}, line])
    asked = drawn(Data("timed_trace", 9, path))
    assert [each.at for each in asked] == [0.0, 1.0]
    assert [each.at for each in drawn(Data("timed_trace", 9, path, unit=0.5))] == [0.0, 0.5]
    with pytest.raises(ConfigError, match="timed_trace_chunk_hash_size"):
        drawn(Data("timed_trace", 9, path, block=9))


def test_lengths_can_be_scaled(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", [*MOONCAKE])
    asked = drawn(Data("mooncake", 9, path, length_scale=0.1))
    assert [(len(each.prompt), each.max_tokens) for each in asked] == [(102, 1), (110, 1), (3, 1)]
    assert asked[0].prompt == asked[1].prompt[:102]


GOOD = {"timestamp": 0, "input_length": 5, "output_length": 5}


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        '{"timestamp": 0}',
        "[" * 9999,
        json.dumps({**GOOD, "timestamp": -1}),
        json.dumps({**GOOD, "timestamp": None}),
        '{"timestamp": NaN, "input_length": 5, "output_length": 5}',
        '{"timestamp": 1e999, "input_length": 5, "output_length": 5}',
        json.dumps({**GOOD, "input_length": 0}),
        json.dumps({**GOOD, "input_length": 1.5}),
        json.dumps({**GOOD, "input_length": True}),
        json.dumps({**GOOD, "output_length": "many"}),
        json.dumps({**GOOD, "output_length": traces.MOST_LENGTH + 1}),
        json.dumps({**GOOD, "hash_ids": 3}),
        json.dumps({**GOOD, "hash_ids": [[]]}),
        json.dumps({**GOOD, "hash_ids": []}),
        '{"timestamp": 0, "input_length": 5, "output_length": ' + "9" * 5000 + "}",
    ],
)
def test_a_line_that_is_none_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{line}\n", "utf-8")
    with pytest.raises(ConfigError, match="line 3"):
        drawn(Data("mooncake", 9, path))


HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_a_trace_of_burstgpts_form(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "5,GPT-4,40,6,46,API log\r\n6,ChatGPT,50,7,57,x\r\n\r\n7,GPT-4,60,0,60,x\r\n"
    path.write_text(HEAD + rows + '9.5,"GPT-4",70,8,78,"a, b"\r\n', "utf-8")
    asked = drawn(Data("burstgpt", 9, path))
    assert [(len(each.prompt), each.max_tokens, each.at) for each in asked] == [
        (40, 6, 0.0),
        (70, 8, 4.5),
    ]
    assert len(drawn(Data("burstgpt", 9, path, burstgpt_model="all"))) == 3
    with pytest.raises(ConfigError, match="burstgpt_model"):
        drawn(Data("burstgpt", 9, path, burstgpt_model="other"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("a,b\n1,2\n", 1),
        (HEAD + "1,GPT-4,5,5\n", 2),
        (HEAD + "x,GPT-4,5,5,10,x\n", 2),
        (HEAD + "1,GPT-4,5,5,10,x\n1,GPT-4,-5,5,0,x\n", 3),
        (HEAD + "1,GPT-4,5,5.5,10,x\n", 2),
        (HEAD + f"1,GPT-4,{'9' * 5000},5,10,x\n", 2),
        (HEAD + f"1,{'x' * 200_000},5,5,10,x\n", 2),
    ],
)
def test_a_row_that_is_none_is_named(text: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=f"line {line}"):
        drawn(Data("burstgpt", 9, path))


def test_a_trace_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "trace.jsonl", [*MOONCAKE])
    monkeypatch.setattr(source, "MOST_TOKENS", 2000)
    with pytest.raises(ConfigError, match="length_scale"):
        drawn(Data("mooncake", 9, path))
    with pytest.raises(ConfigError, match="num_prompts"):
        drawn(Data("random", 2))
    monkeypatch.setattr(traces, "MOST_LINE", 20)
    with pytest.raises(ConfigError, match="line 1"):
        drawn(Data("mooncake", 9, path))


@pytest.mark.parametrize("name", ["mooncake", "timed_trace", "burstgpt"])
def test_a_trace_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError):
            drawn(Data(name, 9, path))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError):
        drawn(Data(name, 9, tmp_path / "bytes"))
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ConfigError):
        drawn(Data(name, 9, tmp_path / "empty"))


def test_adapters_by_chance_or_in_turn() -> None:
    asked = [Asked("x", 1)] * 100
    by_chance = with_adapters(asked, ["a", "b"], False, random.Random(0))
    assert {each.model for each in by_chance} == {"a", "b"}
    assert by_chance == with_adapters(asked, ["a", "b"], False, random.Random(0))
    in_turn = with_adapters(asked, ["a", "b"], True, random.Random(0))
    assert [each.model for each in in_turn] == ["a", "b"] * 50
    assert with_adapters(asked, [], False, random.Random(0)) == asked


def test_the_last_block_may_not_be_whole() -> None:
    assert shapes.blocks(("0", "7", "9"), 10, 8) == (Piece("block 0", 8), Piece("block 7", 2))
    assert Shape(shapes.blocks(("0", "7"), 10, 8), 1).prompt_tokens == 10


def test_prompts_of_files(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"prompt": "a"}\n\n{"messages": [{"role": "user"}], "output_tokens": 3}\n')
    assert [each.max_tokens for each in files.read_lines(lines, 9)] == [9, 3]
    talks = tmp_path / "talks"
    turns = [{"value": "hi"}, {"value": "a b c"}]
    talks.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, 3]))
    assert files.read_sharegpt(talks, None) == [Asked("hi", 4)]
    assert files.read_sharegpt(talks, 7) == [Asked("hi", 7)]
    again = files.chosen([Asked("a", 1), Asked("b", 1)], 5, random.Random(0))
    assert {each.prompt for each in again} == {"a", "b"}
    assert len(again) == 5
    many = "".join(f'{{"prompt": "{number}"}}\n' for number in range(9))
    lines.write_text(many)
    ordered = [str(number) for number in range(9)]
    data = Data("custom", 20, lines, is_shuffled=False, is_repeated=False)
    assert [each.prompt for each in drawn(data)] == ordered
    assert len(drawn(Data("custom", 20, lines))) == 20
    assert [each.prompt for each in drawn(Data("custom", 9, lines))] != ordered


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "{}", '{"prompt": 3}', '{"prompt": "a", "output_tokens": 0}', "[" * 9999],
)
def test_files_that_have_no_prompts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError):
        files.read_lines(path, 9)
    with pytest.raises(ConfigError):
        files.read_sharegpt(path, None)
    with pytest.raises(ConfigError):
        files.read_lines(tmp_path / "none", 9)
