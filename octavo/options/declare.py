"""The declaration of a setting: one line says its default, its help, its bounds and its flags.

    port: int = option(8000, "the port to listen on; 0: any free one", "NUMBER", least=0)

The struct's checks and the command line derive from it. A bound that is not given is 1 for whole
numbers and anything above 0 for others: most settings are sizes and times.
"""

from __future__ import annotations

import argparse
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from octavo.options.values import READERS

T = TypeVar("T")
_KEY = "option"
# What a text is, by its placeholder, for the error about another type.
_NOUNS = {"NAME": "a name", "MODEL": "a name or a path", "PLACE": "a name or a path"}


class Option(NamedTuple):
    """The part of a setting's declaration that its type and its default do not say."""

    help: str  # empty: there is no flag, or one that the command line adds itself
    metavar: str = ""  # the placeholder, which also determines how the value is read
    group: str = ""
    least: float | None = None
    most: float = math.inf
    choices: tuple[str, ...] = ()  # of a type that is no Literal
    also: tuple[str, ...] = ()  # further names of choices, which are read as one of them
    flags: tuple[str, ...] = ()  # besides the setting's own name, shown in help
    aliases: tuple[str, ...] = ()  # likewise, not shown: other servers' names
    read: Callable[[str], Any] | None = None  # instead of the placeholder's reader
    parts: Mapping[str, Any] = {}  # further ones of argparse's argument


def option(default: T, text: str = "", metavar: str = "", **parts: Any) -> T:
    """Declare a setting with a default."""
    declared: Any = field(default=default, metadata={_KEY: Option(text, metavar, **parts)})
    return declared  # type: ignore[no-any-return]


class Declared(NamedTuple):
    """One setting of a struct."""

    name: str
    default: Any
    option: Option
    kind: type | None  # bool, int, float or str; None for another type, which is not checked here
    may_be_none: bool
    choices: tuple[Any, ...]

    @property
    def flag(self) -> str:
        """The flag of this name."""
        return "--" + self.name.replace("_", "-")


@cache
def declared_in(struct: type) -> tuple[Declared, ...]:
    """Return the settings of a struct, in their order."""
    hints = get_type_hints(struct)
    return tuple(
        _declared(each.name, each.default, each.metadata.get(_KEY, Option("")), hints[each.name])
        for each in fields(struct)
    )


def _declared(name: str, default: Any, given: Option, hint: Any) -> Declared:
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [each for each in members if each is not NoneType]
    literal = next((each for each in kinds if get_origin(each) is Literal), None)
    choices = given.choices if literal is None else get_args(literal)
    plain = len(kinds) == 1 and kinds[0] in (bool, int, float, str)
    kind = kinds[0] if plain else None
    return Declared(name, default, given, kind, len(kinds) < len(members), choices)


def check(settings: Any, error: type[Exception]) -> None:
    """Raise an error for the first value that is not of its setting's type, or out of bounds."""
    struct: Any = type(settings)
    for each in declared_in(struct):
        value = getattr(settings, each.name)
        if value is None and each.may_be_none:
            continue
        shown = f"{each.name}={value!r}"
        if each.choices:
            if value not in each.choices:
                choices = map(str, (*each.choices, *each.option.also))
                raise error(f"{shown} must be one of {', '.join(choices)}")
        elif each.kind is bool and not isinstance(value, bool):
            raise error(f"{shown} must be True or False")
        elif each.kind is str and not isinstance(value, str):
            raise error(f"{shown} must be {_NOUNS.get(each.option.metavar, 'a text')}")
        elif each.kind is int:
            object.__setattr__(settings, each.name, _whole(shown, value, error))
            _check_bounds(shown, value, each.option, 1, error)
        elif each.kind is float:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise error(f"{shown} must be a number{_of_seconds(each)}")
            _check_bounds(shown, value, each.option, None, error)


def _of_seconds(each: Declared) -> str:
    return " of seconds" if each.option.metavar == "SECONDS" else ""


def _whole(shown: str, value: Any, error: type[Exception]) -> int:
    """Return a value as an int; numpy's whole numbers are accepted."""
    try:
        number = operator.index(value)
    except TypeError:
        raise error(f"{shown} must be a whole number") from None
    if isinstance(value, bool):
        raise error(f"{shown} must be a whole number")
    return number


def _check_bounds(
    shown: str, value: float, given: Option, usual: int | None, error: type[Exception]
) -> None:
    least = usual if given.least is None else given.least
    is_enough = value > 0 if least is None else value >= least
    if is_enough and value <= given.most and value != math.inf:
        return
    if least is not None and given.most < math.inf:
        raise error(f"{shown} must be between {least:.15g} and {given.most:.15g}")
    bound = "above 0" if least is None else f"at least {least:.15g}"
    most = ", and finite" if given.most == math.inf else f", and at most {given.most:.15g}"
    raise error(f"{shown} must be {bound}{most if usual is None else ''}")


def add_flags(
    group: argparse._ArgumentGroup,
    struct: type,
    title: str = "",
    *,
    without: Collection[str] = (),
) -> None:
    """Add the flags of a struct's settings, or of those in one group of them, but for some.

    A flag that is not given leaves no value, so that the default stays in its one place.
    """
    for each in declared_in(struct):
        if each.option.help and each.option.group == title and each.name not in without:
            _add_flag(group, each)


def _add_flag(group: argparse._ArgumentGroup, each: Declared) -> None:
    given, default = each.option, each.default
    parts: dict[str, Any] = {}
    if each.kind is bool:
        default = None if each.may_be_none else default
        parts["action"] = argparse.BooleanOptionalAction
    elif each.choices and not given.metavar:
        parts["choices"] = each.choices
    else:
        parts["metavar"] = given.metavar
        read = given.read or READERS.get(given.metavar)
        if read is not None:
            parts["type"] = read
    shown = "" if default in (None, "", ()) else _shown(default)
    text = f"{given.help} ({shown})" if shown else given.help
    parts = {**parts, **given.parts}
    group.add_argument(
        *(each.flag, *given.flags), dest=each.name, default=argparse.SUPPRESS, help=text, **parts
    )


def _shown(default: Any) -> str:
    """Return a default as the help shows it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, float):
        return f"{default:g}"
    return f"{default:,}" if isinstance(default, int) and default > 9999 else str(default)


def given_in(arguments: argparse.Namespace, struct: type) -> dict[str, Any]:
    """Return the settings of a struct that the command line has given."""
    found = vars(arguments)
    names = [each.name for each in declared_in(struct)]
    return {name: found[name] for name in names if found.get(name) is not None}


def aliases_of(struct: type) -> dict[str, str]:
    """Return the other names of a struct's flags, which the help does not show."""
    return {alias: each.flag for each in declared_in(struct) for alias in each.option.aliases}
