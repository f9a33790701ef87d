"""Sizes and counts as people write them, and errors that say what to type."""

from __future__ import annotations

import argparse

import pytest

from octavo.cli.output import size, table
from octavo.cli.parsing import Parser, UsageError
from octavo.options.values import byte_count, seconds, token_count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("123", 123),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("4G", 4 << 30),
        ("1.5k", 1536),
        ("500MB", 500_000_000),
        ("7B", 7),
        ("2tib", 2 << 40),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "4Q", "1e9", "0x10", "GiB", "1 2", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="as in 4GiB"):
        byte_count(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("1M", 1 << 20)],
)
def test_token_counts(text: str, count: int) -> None:
    assert token_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "many", "1.5", "infk", "1e999k"])
def test_what_is_no_token_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="as in 4096 or 32k"):
        token_count(text)


def test_seconds() -> None:
    assert seconds("2.5") == 2.5
    assert seconds("0") == 0
    for text in ("nan", "inf", "-1", "soon"):
        with pytest.raises(argparse.ArgumentTypeError, match="not a number of seconds"):
            seconds(text)


def make_parser() -> Parser:
    parser = Parser(prog="octavo test")
    parser.add_argument("--max-model-len", "-c", type=token_count)
    parser.add_argument("-dcp", "-pcp", type=int)
    parser.add_argument("--size", type=byte_count)
    parser.add_argument("word", nargs="?")
    return parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-model-ln", "3"], r"no option --max-model-ln; did you mean --max-model-len\?"),
        (["--max-model-ln=3"], r"no option --max-model-ln; did you mean --max-model-len\?"),
        (["--max-model"], "no option --max-model"),  # an abbreviation is not guessed at
        (["-cp", "2"], r"no option -cp; did you mean -dcp or -pcp\?"),
        (["-c", "p"], "argument --max-model-len/-c: 'p' is not a number of tokens"),
        (["-cx2"], r"no option -cx2"),
        (["--size", "much"], "argument --size: 'much' is not a size"),
        (["--size"], "argument --size: expected one argument"),
        (["a", "b"], "'b' is one argument too many"),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_parser().parse_args(words)
    assert "see `octavo test --help`" in str(caught.value).replace("See", "see")


def test_a_value_may_follow_a_short_flag_at_once() -> None:
    assert make_parser().parse_args(["-c32k"]).max_model_len == 32_000
    assert make_parser().parse_args(["-c", "4096"]).max_model_len == 4096


def test_only_options_are_respelled() -> None:
    parser = make_parser()
    parser.add_argument("-n", type=int)
    assert parser.parse_args(["--max_model_len", "3"]).max_model_len == 3
    assert parser.parse_args(["--size=1", "__size"]).word == "__size"
    assert parser.parse_args(["_n"]).word == "_n"
    found = parser.parse_args(["--max_model_len=3", "--", "--max_model_len"])
    assert (found.word, found.max_model_len) == ("--max_model_len", 3)
    assert parser.spellings(["--", "--max_model_len"])["max_model_len"] == "--max-model-len"


def test_an_optional_value_follows_an_equals_sign() -> None:
    parser = make_parser()
    parser.add_argument("--cache", nargs="?", const="auto", metavar="DIR")
    for words, cache, word in (
        (["--cache"], "auto", None),
        (["--cache", "a"], "auto", "a"),
        (["--cache=b", "a"], "b", "a"),
        (["--cache=", "a"], "", "a"),
        (["--", "--cache"], None, "--cache"),
    ):
        found = parser.parse_args(words)
        assert (found.cache, found.word) == (cache, word)
    with pytest.raises(UsageError, match=r"'b' is one argument too many; .* --cache=b"):
        parser.parse_args(["a", "--cache", "b"])
    with pytest.raises(UsageError, match="'b' is one argument too many; see"):
        parser.parse_args(["a", "b"])


def test_a_table_is_as_wide_as_it_must_be() -> None:
    rows = [("a", "1"), ("long", "100")]
    assert table(rows, indent="  ", right=(1,)) == "  a       1\n  long  100\n"
    assert table([]) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (513 << 20, "513 MiB"), (3 << 40, "3 TiB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text
