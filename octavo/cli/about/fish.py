"""The completion of the command line for fish, with the help of each option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.cli.about.description import Argument, Page


def script(pages: Sequence[Page]) -> str:
    """Return the whole script."""
    lines = ["# Completion of octavo for fish, made by `octavo completion fish`."]
    lines.append("complete -c octavo -f")
    for page in pages:
        command = page.command
        lines.append(
            f"complete -c octavo -n __fish_use_subcommand -a {command.name} "
            f"-d {_quoted(command.summary)}"
        )
        condition = _quoted(f"__fish_seen_subcommand_from {command.name}")
        for each in page.arguments:
            lines += [f"complete -c octavo -n {condition} {part}" for part in _parts(each)]
    return "\n".join(lines) + "\n"


def _parts(argument: Argument) -> Iterator[str]:
    """Yield the options of `complete` for an argument."""
    choices = f" -a {_quoted(' '.join(argument.choices))}" if argument.choices else ""
    files = " -a '(__fish_complete_directories)'" if argument.is_directory else ""
    if argument.is_file:
        files = " -F"
    if not argument.flags:
        if choices or files:
            yield f"{choices}{files}".strip()
        return
    value = ""
    if argument.value and not argument.is_attached:
        value = f" -r{files}{choices}" if argument.is_file else f" -x{files}{choices}"
    names = " ".join(map(_name, argument.flags))
    yield f"{names}{value} -d {_quoted(argument.help)}"


def _name(flag: str) -> str:
    """Return the option of `complete` for a flag, which may be long, short or old."""
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


def _quoted(text: str) -> str:
    """Return a text as one word of the shell."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
