"""The names of modules in settings: exact ones and regexes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loader.errors import UnsupportedFormatError
from octavo.quant.module_names import MAX_PATTERNS, NamePatterns, NameRegex

NAMES = [
    "lm_head",
    "model.embed_tokens",
    *(
        f"model.layers.{layer}.{part}"
        for layer in (0, 1, 10, 31)
        for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    ),
]
REGEXES = [
    ".*lm_head",
    "^lm_head$",
    r"model\.layers\.(0|10)\..*",
    r".*self_attn\.(q|k|v)_proj$",
    r"(?!.*\.mlp\.).*",
    r"^(?!model\.layers\.1\.).*proj$",
    r"model\.layers\.\d+\.mlp",
    r"model.layers.[0-9]\.",
    r".*\.(gate|up)_proj",
    "",
    "layers",
]


@pytest.mark.parametrize("regex", REGEXES)
def test_a_regex_matches_as_in_python(regex: str) -> None:
    read = NameRegex(regex)
    assert [read.matches(each) for each in NAMES] == [bool(re.match(regex, each)) for each in NAMES]


PIECES = st.sampled_from(["a", "b", ".", r"\.", "(a|b)", "[ab]", "a*", "b+", "(ab)?", r"\w", "$"])


@given(st.lists(PIECES, max_size=6).map("".join), st.text("ab.", max_size=8))
def test_random_regexes_match_as_in_python(regex: str, name: str) -> None:
    assert NameRegex(regex).matches(name) == bool(re.match(regex, name))


def test_a_regex_that_would_take_for_ever_is_quick() -> None:
    regex, name = "(a+)+$", "a" * 400 + "b"
    assert not NameRegex(regex).matches(name)
    assert NameRegex(regex).matches("a" * 400)


@pytest.mark.parametrize("regex", ["(", r"(a)\1", "a|^b", "x" * 5000, "(?P<a>"])
def test_a_regex_that_cannot_be_read_is_refused(regex: str) -> None:
    with pytest.raises(UnsupportedFormatError, match="of module names cannot be read"):
        NameRegex(regex)


def test_lists_have_names_and_regexes() -> None:
    patterns = ["lm_head", r"re:model\.layers\.0\."]
    exact = NamePatterns(patterns, "ignore")
    assert exact.match("lm_head")
    assert exact.match("model.layers.0.mlp.down_proj")
    assert not exact.match("the.lm_head")
    assert exact.has("lm_head")
    assert not NamePatterns(None, "ignore").match("lm_head")


@pytest.mark.parametrize("patterns", ["lm_head", [1], {"a": 1}, ["a"] * (MAX_PATTERNS + 1)])
def test_a_wrong_list_is_refused(patterns: object) -> None:
    with pytest.raises(UnsupportedFormatError, match="quantization_config: ignore"):
        NamePatterns(patterns, "ignore")
