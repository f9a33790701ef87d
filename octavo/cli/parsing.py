"""The argument parser, whose errors say what to do, and the types of its values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from octavo import env
from octavo.cli.flags import config_file, variables
from octavo.cli.flags.dotted import joined
from octavo.nearest import nearest, nearest_option
from octavo.options.foreign import MISSING, SYNONYMS

# vLLM's short flags of options that are missing.
_LONG = {
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dc": "--diffusion-config",
}

_LIKE_SHORT = 0.75  # likeness of short flags, one of which may be meant

# Arguments that only the command line has.
_NO_SETTINGS = frozenset({"help", "debug", "show", "config"})


class UsageError(Exception):
    """A mistake in the command line; the message says what to type instead."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that never abbreviates flags and raises its errors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options
        )
        self._expansions: dict[str, str] = {}
        self._meanings: dict[str, Mapping[str, str]] = {}
        self._usual: dict[str, tuple[str, ...]] = {}
        self._lists: set[str] = set()
        self._wholes: dict[str, str] = {}

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, allowing options between positional arguments.

        `--max_model_len` means `--max-model-len`, as in vLLM. Where there are other sources than
        the command line, `origins` names that of each setting.
        """
        if args is None or config_file.FLAG not in self._option_string_actions:
            return self._parsed(args if args is None else self._plain(args), namespace)
        words, origins = self._with_sources(args)
        found = self._parsed(words, namespace)
        found.origins = origins
        return found

    def _parsed(self, words: Sequence[str] | None, namespace: Any = None) -> Any:
        """Return what plain words give; refuse those that are unknown."""
        found, unknown = self.parse_known_args(words, namespace)
        unknown = [*self._flags_taken(found, words or ()), *self._with_rest(found, unknown)]
        if unknown:
            self.error(self._about_unknown(unknown, words or ()))
        return found

    def add_aliases(self, names: Mapping[str, str]) -> None:
        """Add other names of flags, which `--help` does not show; own flags go before them."""
        for alias, flag in names.items():
            self._option_string_actions.setdefault(alias, self._option_string_actions[flag])

    def add_expansions(self, names: Mapping[str, str]) -> None:
        """Add flags that stand for other ones, such as for a key of a JSON object."""
        self._expansions.update(names)

    def add_meanings(self, names: Mapping[str, Mapping[str, str]]) -> None:
        """Add flags that stand for whole words, a different one for each of their values."""
        self._meanings.update(names)

    def add_usual(self, values: Mapping[str, Sequence[str]]) -> None:
        """Add values of flags that mean their defaults; such a flag is left out."""
        for flag, usual in values.items():
            self._usual[flag] = tuple(usual)

    def add_lists(self, names: Iterable[str]) -> None:
        """Add flags whose value is several ones with commas between them."""
        self._lists.update(names)

    def add_wholes(self, settings: Mapping[str, str]) -> None:
        """Add flags that give a part of another one's setting; both count as one setting."""
        self._wholes.update(settings)

    def _with_sources(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return plain words with those of the variables and the file, and each setting's origin.

        The command line goes before variables, and they go before the file.
        """
        actions = self._option_string_actions
        try:
            path, rest = config_file.without_file(words)
            own = self._plain(rest)
            if path is None and env.options_file():
                path = Path(env.options_file())
            sources = [variables.words_of(env.settings(), actions)]
            if path is not None:
                given = config_file.words_of(path, actions)
                sources.append({f"{path}: {flag[2:]}": each for flag, each in given.items()})
        except ValueError as error:
            raise UsageError(str(error)) from None
        origins = {self._setting(word): word.partition("=")[0] for word in own}
        if getattr(self.parse_known_args(own)[0], "model_word", None):
            origins["model"] = "MODEL"
        end = own.index("--") if "--" in own else len(own)
        kept: list[str] = []
        for source in sources:
            new = [each for each in self._checked(source) if each[1] not in origins]
            kept += self._plain([word for origin, _ in new for word in source[origin]])
            origins |= {setting: origin for origin, setting in new}
        origins.pop("", None)  # of words that are no flags
        return [*own[:end], *kept, *own[end:]], origins

    def _checked(self, source: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
        """Return the origin and the setting of each option that a source gives.

        Each is parsed alone, so that an error names its origin.
        """
        found = []
        origins: dict[str, str] = {}
        for origin, words in source.items():
            try:
                plain = self._plain(words)
                flag = plain[0].partition("=")[0] if plain else ""
                action = self._option_string_actions.get(flag)
                if action is not None and action.dest in _NO_SETTINGS:
                    self.error("it is no setting")
                self._parsed(plain)
            except UsageError as error:
                end = ", or unset it" if origin.startswith(env.SETTING) else ""
                raise UsageError(f"{origin}: {error}{end}") from None
            if action is None:  # a value that is the usual one, or an option that is off
                continue
            other = origins.setdefault(action.dest, origin)
            adds = isinstance(action, argparse._AppendAction) or action.nargs == "+"
            is_key = words[0].partition("=")[0] in {*self._expansions, *self._meanings}
            if other != origin and not (adds or is_key):
                raise UsageError(f"{other} and {origin} are the same setting; leave one out")
            found.append((origin, self._setting(flag)))
        return found

    def _setting(self, word: str) -> str:
        """Return the name of the setting that a plain flag is for, "" for another word."""
        action = self._option_string_actions.get(word.partition("=")[0])
        return "" if action is None else self._wholes.get(action.dest, action.dest)

    def _plain(self, words: Sequence[str]) -> list[str]:
        """Return words as plain flags, without underscores, dotted keys or other servers' names."""
        try:
            words = joined(self._expanded(words))
        except ValueError as error:
            raise UsageError(str(error)) from None
        plain = self._attached(self._dashed(words))
        self._refuse_values(plain)
        self._refuse_joined(plain)
        return plain

    def _expanded(self, words: Sequence[str]) -> list[str]:
        """Write out flags that stand for others, and leave out those with their usual values."""
        end = words.index("--") if "--" in words else len(words)
        found: list[str] = []
        index = 0
        while index < end:
            name, equals, value = words[index].partition("=")
            index += 1
            follows = "" if equals or index == end else words[index]
            given = value if equals else follows
            meant = self._meanings.get(name, {}).get(given)
            if meant is not None or given in self._usual.get(name, ()):
                found += [] if meant is None else [meant]
                index += 0 if equals else 1
                continue
            if name in self._lists and given:
                found += [f"{name}={each.strip()}" for each in given.split(",")]
                index += 0 if equals else 1
                continue
            found.append(self._expansions.get(name, name) + equals + value)
        return [*found, *words[end:]]

    def error(self, message: str) -> NoReturn:
        end = " See" if message.endswith("?") else "; see"
        raise UsageError(f"{message}{end} `{self.prog} --help`")

    def flags(self) -> list[str]:
        """Return every flag, hidden ones and other names included."""
        return [*self._option_string_actions, *self._expansions]

    def _own_flags(self) -> list[str]:
        """Return the flags that a misspelt one may mean: not those of other servers."""
        return [
            flag
            for action in self._actions
            for flag in action.option_strings
            if flag.startswith("--") and ":" not in action.dest
        ]

    def spellings(self, words: Sequence[str]) -> dict[str, str]:
        """Map each setting to its flag as typed in `words`, or else to the flag's first name."""
        typed = {word.partition("=")[0] for word in self._dashed(words)}
        found: dict[str, str] = {}
        for flag, action in self._option_string_actions.items():
            if not flag.startswith("--no-") and (action.dest not in found or flag in typed):
                found[action.dest] = flag
        return found

    def visible_actions(self) -> list[argparse.Action]:
        """Return the arguments that `--help` shows."""
        return [action for action in self._actions if action.help != argparse.SUPPRESS]

    def _flags_taken(self, found: Any, words: Sequence[str]) -> list[str]:
        """Return what argparse has taken for models: unknown flags whose value has a space."""
        models = getattr(found, "model_word", None)
        end = words.index("--") if "--" in words else len(words)
        if not isinstance(models, list):
            return []
        return [word for word in models if word.startswith("-") and word in words[:end]]

    def _with_rest(self, found: Any, unknown: list[str]) -> list[str]:
        """Add words behind an option to the argument that takes any number; return the others.

        argparse ends such an argument at the first option.
        """
        many = [each.dest for each in self._get_positional_actions() if each.nargs == "*"]
        end = unknown.index("--") if "--" in unknown else len(unknown)
        if not many or any(word.startswith("-") for word in unknown[:end]):
            return unknown
        getattr(found, many[0]).extend([*unknown[:end], *unknown[end + 1 :]])
        return []

    def _refuse_values(self, words: Sequence[str]) -> None:
        """Refuse `--flag=value` where the flag takes no value, with the words to type instead."""
        for word in words[: words.index("--") if "--" in words else len(words)]:
            name, equals, _ = word.partition("=")
            action = self._option_string_actions.get(name)
            if equals and action is not None and action.nargs == 0:
                others = [flag for flag in action.option_strings if flag.startswith("--no-")]
                both = f"{name}, or {others[0]} for the opposite" if others else name
                if name.startswith("--no-"):
                    both = f"{action.option_strings[0]}, or {name} for the opposite"
                self.error(f"{name} takes no value; write {both}")

    def _refuse_joined(self, words: Sequence[str]) -> None:
        """Refuse `-cp` where there is a `-c`, whose value `p` is none: it is another option."""
        for word in words[: words.index("--") if "--" in words else len(words)]:
            is_joined = word[:1] == "-" and word[1:3].isalpha() and len(word) > 2
            if not is_joined or word.partition("=")[0] in self._option_string_actions:
                continue
            action = self._option_string_actions.get(word[:2])
            if action is None or action.nargs == 0 or action.type in (None, str):
                continue
            try:
                self._get_value(action, word[2:])
            except argparse.ArgumentError:
                self.error(self._about_unknown([word], words))

    def _attached(self, words: Sequence[str]) -> list[str]:
        """Give flags whose value is optional the one they mean alone: theirs follows only a `=`.

        The word behind such a flag is an argument of the command, such as the model.
        """
        end = words.index("--") if "--" in words else len(words)
        alone = {
            flag: f"{flag}={action.const}"
            for flag, action in self._option_string_actions.items()
            if action.nargs == argparse.OPTIONAL
        }
        return [*(alone.get(word, word) for word in words[:end]), *words[end:]]

    def _dashed(self, words: Sequence[str]) -> list[str]:
        """Replace underscores in long options by dashes; after `--` all words are values."""
        end = words.index("--") if "--" in words else len(words)
        return [*map(self._dashed_option, words[:end]), *words[end:]]

    def _dashed_option(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        is_known = word.startswith("--") and dashed in self._option_string_actions
        return dashed + equals + value if is_known else word

    def _about_unknown(self, words: list[str], given: Sequence[str]) -> str:
        name = words[0].partition("=")[0]
        if not name.startswith("-"):
            return f"{words[0]!r} is one argument too many{self._meant_as_value(words[0], given)}"
        long = _LONG.get(name, name)
        reason = MISSING.get(long.removeprefix("--").replace("-", "_"))
        if reason is not None:
            return f"{name} is not supported: {reason}"
        meant = SYNONYMS.get(name.lstrip("-").replace("-", "_"), "").replace("_", "-")
        is_known = f"--{meant}" in self._option_string_actions
        near = f"--{meant}" if is_known else nearest_option(name, self._own_flags())
        if near is None and name[:2] != "--":
            short = [each for each in self._option_string_actions if each[:2] != "--"]
            near = " or ".join(sorted(nearest(name, short, most=2, likeness=_LIKE_SHORT)))
        hint = f"; did you mean {near}?" if near else ""
        return f"there is no option {name}{hint}"

    def _meant_as_value(self, word: str, given: Sequence[str]) -> str:
        """Say how to write an argument that is too many if it is the value of a flag."""
        for action in self.visible_actions():
            for flag in action.option_strings:
                if action.nargs == argparse.OPTIONAL and f"{flag}={action.const}" in given:
                    return attached_instead(flag, word)
        return ""


def attached_instead(flag: str, word: str) -> str:
    """Return the end of an error: how a word is written that was meant as the value of a flag."""
    return f"; if {word!r} belongs to {flag}, write {flag}={word}"
