"""Each flag on the pages for users of other servers means, or refuses, what they say."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable

import pytest

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.flags.foreign import ALONE
from octavo.cli.flags.other_servers import KEYS, OTHERS, SAME, Other, check_other_flags
from octavo.cli.parsing import Parser, UsageError
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.foreign import FIXED, INERT, MISSING, REFUSED, WITHOUT_EFFECT, advice_on
from tests.docs.flag_tables import (
    accepted,
    flag_of,
    followed,
    is_of_llama_server,
    same_of_llama_server,
    same_of_sglang,
    tables,
    vllm_flags,
    written,
)
from tests.docs.pages import path_of


@pytest.fixture(scope="module")
def parser() -> Parser:
    return make_parser(COMMANDS["serve"])


@pytest.mark.parametrize("page", tables())
def test_the_tables_are_those_of_the_declarations(page: str) -> None:
    hint = "run: python -m tests.docs.flag_tables --write"
    assert path_of(page).read_text("utf-8") == written(page, tables()[page]), hint


def meaning(parser: Parser, words: list[str]) -> dict[str, object] | str:
    """Return what words of a command line set, or why they are refused."""
    try:
        found = vars(parser.parse_args(words))
        return {name: value for name, value in found.items() if name != "origins"}
    except UsageError as error:
        return str(error).replace(words[0], "FLAG")


def test_another_name_of_a_flag_means_the_same(parser: Parser) -> None:
    assert {**same_of_llama_server(), **same_of_sglang()} == {**SAME, **KEYS}
    for flag, target in {**SAME, **KEYS}.items():
        tried = [[], ["1"], ["0.5"], ["name"], ['{"a": 1}']]
        found = [
            (meaning(parser, [flag, *each]), meaning(parser, [target, *each])) for each in tried
        ]
        sets = [pair for pair in found if isinstance(pair[0], dict)]
        assert sets, f"{flag} takes none of the values"
        assert all(ours == theirs for theirs, ours in sets), flag


def is_others(parser: Parser, flag: str) -> bool:
    """Return whether a flag is that of another server alone."""
    actions = [each for each in parser._actions if flag in each.option_strings]
    return any(each.dest == f"other:{flag}" for each in actions)


def words_with(row: Other, flag: str, value: str) -> list[str]:
    return [flag] if row.is_alone else [flag, value]


def checked(parser: Parser, words: list[str]) -> argparse.Namespace:
    arguments = parser.parse_args(words)
    check_other_flags(arguments)
    return arguments


def test_each_flag_of_another_server_does_what_its_row_says(
    parser: Parser, caplog: pytest.LogCaptureFixture
) -> None:
    """A flag is refused with the reason that is shown, or accepted and its reason is logged."""
    caplog.set_level(logging.WARNING, "octavo.cli")
    first = {flag for flag in parser.flags() if not is_others(parser, flag)}
    assert len(list(filter(is_of_llama_server, OTHERS))) in range(60, len(OTHERS) - 10)
    for row in OTHERS:
        for flag in row.flags:
            if flag in first:
                continue  # the command's own, or vLLM's
            if row.harmless is None or row.harmless:
                value = row.harmless[0] if row.harmless else "1"
                checked(parser, words_with(row, flag, value))
                assert f"{flag} ({row.reason})" in caplog.messages[-1]
            if row.harmless is not None:
                with pytest.raises(UsageError) as refused:
                    checked(parser, words_with(row, flag, "other"))
                assert str(refused.value).startswith(flag)
                assert row.reason in str(refused.value)


def test_each_flag_of_vllm_is_in_one_table() -> None:
    flags = [each for each in vllm_flags() if each not in ("--help", "-h")]
    parts: list[Iterable[str]] = [followed()]
    parts += [[flag_of(name) for name in table] for table in (INERT, FIXED, MISSING)]
    for flag in flags:
        assert sum(flag in part for part in parts) == 1 or flag in followed(), flag


def test_what_vllms_flags_lead_to_is_what_the_tables_say() -> None:
    """Flags are without effect, take the values that are shown, or are refused with the reason."""
    plain = EngineArguments(model="m")
    for name in INERT:
        value = True if name in ALONE else "1"
        assert read_arguments("m", {name: value}) == plain, name
    for name, (is_so, _) in FIXED.items():
        if accepted(name):
            shown = accepted(name)[0]
            words: dict[str, object] = {"on": True, "off": False}
            fixed = words.get(shown, int(shown) if shown.isdigit() else shown)
            assert is_so([fixed] if name == "ignore_patterns" else fixed), name
    for name, reason in MISSING.items():
        with pytest.raises(ConfigError) as refused:
            read_arguments("m", {name: "1"})
        assert reason in str(refused.value), name


def test_ollamas_variables_have_advice() -> None:
    names = [name for name in WITHOUT_EFFECT if name.startswith("OLLAMA_")]
    assert not REFUSED.keys() & set(names)
    assert advice_on(names) == [f"{name} ({WITHOUT_EFFECT[name]})" for name in names]
