"""The completion of the command line for bash, from 3.2 on; it needs no other package."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cli.about.description import Argument, Page

_SCRIPT = """\
# Completion of octavo for bash, made by `octavo completion bash`.
_octavo() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local place=1 kind="" flags="" choices="" words="" words_kind=""
    # The shell splits --flag=VALUE at the =.
    if [[ "$word" == "=" ]]; then
        word=""
    elif [[ "$before" == "=" ]]; then
        before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    [[ "${{COMP_WORDS[1]}}" == "--debug" ]] && place=2
    COMPREPLY=()
    if (( COMP_CWORD <= place )); then
        COMPREPLY=( $(compgen -W "{commands}" -- "$word") )
        return
    fi
    case "${{COMP_WORDS[place]}}" in
{cases}
    esac
    if [[ -z "$kind" && "$word" == -* ]]; then
        COMPREPLY=( $(compgen -W "$flags" -- "$word") )
        return
    fi
    if [[ -z "$kind" ]]; then
        choices="$words" kind="$words_kind"
    fi
    COMPREPLY=( $(compgen -W "$choices" -- "$word") )
    local IFS=$'\\n'
    case "$kind" in
        file) COMPREPLY+=( $(compgen -f -- "$word") ) ;;
        directory) COMPREPLY+=( $(compgen -d -- "$word") ) ;;
        *) return ;;
    esac
    compopt -o filenames 2> /dev/null || true  # which bash 3 does not have
}}
complete -F _octavo octavo
"""


def script(pages: Sequence[Page]) -> str:
    """Return the whole script."""
    names = [each.command.name for each in pages]
    cases = "\n".join(map(_case, pages))
    return _SCRIPT.format(commands=" ".join([*names, "help"]), cases=cases)


def _case(page: Page) -> str:
    """Return the branch of a command: its flags, and what the value of each may be."""
    flags = [flag for each in page.arguments for flag in each.flags]
    words = [each for each in page.arguments if not each.flags]
    lines = [f"flags={_quoted(flags)}"]
    lines.append(f"words={_quoted([choice for each in words for choice in each.choices])}")
    kinds = {*map(_kind, words)} - {"any"}
    lines.append(f"words_kind={min(kinds, default='any')}")
    lines.append('case "$before" in')
    lines += [
        f"    {'|'.join(each.flags)}) kind={_kind(each)} choices={_quoted(each.choices)} ;;"
        for each in page.arguments
        if each.flags and each.value and not each.is_attached
    ]
    inner = "\n".join(f"            {line}" for line in [*lines, "esac", ";;"])
    return f"        {page.command.name})\n{inner}"


def _kind(argument: Argument) -> str:
    if argument.is_file:
        return "file"
    return "directory" if argument.is_directory else "any"


def _quoted(words: Sequence[str]) -> str:
    """Return words as one word of the shell; none of them holds a quote."""
    return "'" + " ".join(words) + "'"
