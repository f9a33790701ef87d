"""The completion of the command line for zsh, with the help of each option."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cli.about.description import Argument, Page

_SCRIPT = """\
#compdef octavo
# Completion of octavo for zsh, made by `octavo completion zsh`.
_octavo() {{
    local -a commands
    commands=(
{commands}
    )
    [[ $words[2] == --debug ]] && {{ shift words; (( CURRENT-- )) }}
    if (( CURRENT <= 2 )); then
        _describe -t commands command commands
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
{cases}
    esac
}}
if [[ $funcstack[1] == _octavo ]]; then
    _octavo "$@"
else
    compdef _octavo octavo
fi
"""


def script(pages: Sequence[Page]) -> str:
    """Return the whole script."""
    commands = "\n".join(
        f"        {_quoted(f'{each.command.name}:{each.command.summary}')}" for each in pages
    )
    return _SCRIPT.format(commands=commands, cases="\n".join(map(_case, pages)))


def _case(page: Page) -> str:
    specs = [spec for each in page.arguments if each.flags for spec in _options(each)]
    words = [each for each in page.arguments if not each.flags]
    specs += [f"*:{word.value}:{_values(word)}" for word in words[:1]]
    inner = " \\\n".join(f"                {_quoted(spec)}" for spec in specs)
    return f"        {page.command.name})\n            _arguments \\\n{inner}\n            ;;"


def _options(argument: Argument) -> list[str]:
    """Return the specification of each flag; one that does not repeat excludes its other names."""
    text = "".join(f"\\{letter}" if letter in "[]\\" else letter for letter in argument.help)
    flags = argument.flags
    first = "*" if argument.repeats else f"({' '.join(flags)})"
    if not argument.value:
        return [f"{first}{flag}[{text}]" for flag in flags]
    rest = f"[{text}]:{argument.value.replace(':', chr(92) + ':')}:{_values(argument)}"
    if argument.is_attached:
        return [f"{first}{flag}=-{rest.replace(']:', ']::', 1)}" for flag in flags]
    return [f"{first}{flag}{'=' if flag.startswith('--') else ''}{rest}" for flag in flags]


def _values(argument: Argument) -> str:
    """Return how the values of an argument are completed."""
    words = f"({' '.join(argument.choices)})" if argument.choices else " "
    if argument.is_directory:
        return "_files -/"
    if not argument.is_file:
        return words
    if not argument.choices:
        return "_files"
    # Without the space, zsh would pass it options of another function.
    return f' _alternative "words:word:{words}" "files:file:_files"'


def _quoted(text: str) -> str:
    """Return a text as one word of the shell."""
    return "'" + text.replace("'", "'\\''") + "'"
