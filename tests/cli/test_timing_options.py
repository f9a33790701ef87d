"""Each limit of the engine's process has a flag of `octavo serve`."""

from __future__ import annotations

from dataclasses import fields

import pytest

from octavo.cli import main
from octavo.cli.commands import COMMANDS, USAGE
from octavo.cli.engine_options import timing_of
from octavo.cli.execute import make_parser
from octavo.client.restart_policy import Timing
from octavo.core.config import ConfigError

NAMES = [field.name for field in fields(Timing)]


def parsed(*words: str) -> Timing:
    return timing_of(make_parser(COMMANDS["serve"]).parse_args(["smollm2", *words]))


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_sets_its_limit_alone(name: str) -> None:
    made = parsed("--" + name.replace("_", "-"), "7")
    assert getattr(made, name) == 7
    for other in NAMES:
        assert other == name or getattr(made, other) == getattr(Timing(), other)


def test_without_flags_all_limits_are_the_default() -> None:
    assert parsed() == Timing()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "inline", "--silence-seconds", "9"), "--engine inline has none"),
        (("--silence-seconds", "soon"), "is not a number of seconds"),
        (("--silence-seconds", "-1"), "is not a number of seconds"),
    ],
)
def test_a_limit_that_cannot_work_is_refused_before_anything_starts(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "smollm2", *words]) == USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["watchdog_seconds", "silence_seconds", "max_failed_engines"])
def test_zero_is_refused_where_no_engine_could_live(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0 must be"):
        Timing(**{name: 0})
