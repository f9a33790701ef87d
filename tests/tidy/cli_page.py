"""docs/cli.md, generated from the parsers: `python -m tests.tidy.cli_page --write`."""

import argparse
import sys

from octavo.cli.commands import COMMANDS, Command
from octavo.cli.execute import make_parser
from octavo.cli.parsing import Parser
from tests.tidy.source import ROOT

PAGE = ROOT / "docs" / "cli.md"
_OPENING = """\
# The command line

Made from the parsers by `python -m tests.tidy.cli_page --write`, and compared with them on every
`make check`. `python -m octavo` is the same as `octavo`.

Exit codes: 0, done; 1, it failed, as when a file or a port cannot be used; 2, the command line is
refused: an option is unknown, or its value cannot work, alone, beside others or for this model,
however often it is tried; 3, the model's files are damaged, incomplete or not supported, and the
message names the file and the field or tensor; 130, ended by Ctrl-C (a server that has
begun to serve ends with 0, or at once with 128 and the signal's number where another signal comes
while it closes). Every command takes `--debug`, which shows the traceback of an error
and logs everything. Options are never abbreviated.

An option of vLLM's is ignored, with a line that says why, only if no value of it can change an
answer, the safety of the server, or what its user counts on. Others are accepted with the values
that are the case here (`--device cpu`), or refused by name. `octavo serve` understands flags of
llama-server and SGLang by the same rule: `-m`, `-hf`, `-c`, `-np`, `-t`, `-ngl 0`, `--temp`,
`--model-path`, `--context-length`, `--tp` and many more.

A key of an option that is a JSON object may be a flag of its own:
`--speculative-config.method ngram`, `--compilation-config.mode=3`; `key+` adds to a list. Keys and
the whole object cannot be mixed.

`octavo serve --config FILE` reads options from a file whose keys are the names of flags. A `.yaml`
file has maps and lists, in blocks or in brackets, texts, numbers, `true` and `false`; anchors, tags
and texts of several lines are refused with their line. `.toml` and `.json` files have the same
keys. A key without a value counts as left out; but API keys and the files of TLS must be texts,
since the server would be open without them.

```yaml
model: org/name
served-model-name: [chat, org/name]
host: 0.0.0.0
api-key: [a-long-key, another-key]
speculative-config:
  method: ngram
```

Each of these options is also a variable: `OCTAVO_MAX_MODEL_LEN=4096` is `--max-model-len 4096`.
Options without a value take `true` or `false`; those with several take them with commas between
them, or as a JSON list. `OCTAVO_CONFIG` names the file. A flag goes before a variable, a variable
before the file, and the file before the default; only API keys add up. A variable that begins with
`OCTAVO_` and is no option is refused, but for `OCTAVO_CACHE`, `OCTAVO_CPU_ISA`,
`OCTAVO_CPU_THREADS` and `OCTAVO_CPU_CALIBRATION`, and for those that Kubernetes and Docker set for
a service of this name.
`octavo config` takes the options of `octavo serve` and checks them in the same way; it prints which
are given and by what, and with `--show` all settings.
"""

_AS_SERVE = "It takes every option of `octavo serve` too."


def page() -> str:
    """Return the whole page."""
    parts = [_OPENING, "\n| command | what it does |\n| --- | --- |\n"]
    for command in COMMANDS.values():
        words = f"octavo {command.words} {command.synopsis}".strip()
        parts.append(f"| `{words}` | {command.summary} |\n")
    parts += [section(command) for command in COMMANDS.values()]
    return "".join(parts)


def section(command: Command) -> str:
    """Describe one command, with a table for each group of its options."""
    parser = make_parser(command)
    words = f"octavo {command.words} {command.synopsis}".strip()
    parts = [f"\n## `{words}`\n\n{parser.description}\n"]
    if parser.epilog:
        parts.append(f"\n{parser.epilog}\n")
    if command.name == "config":  # whose other options are those of another section
        parts.append(f"\n{_AS_SERVE}\n")
        return "".join([*parts, options(parser, parser._action_groups[1])])
    parts += [options(parser, group) for group in parser._action_groups]
    return "".join(parts)


def options(parser: Parser, group: argparse._ArgumentGroup) -> str:
    """Format a group's options as a table, or "" if it shows none."""
    visible = parser.visible_actions()
    rows = [
        f"| {spelled(action)} | {' '.join(str(action.help or '').split())} |\n"
        for action in group._group_actions
        if action in visible and action.dest not in ("help", "debug")
    ]
    if not rows:
        return ""
    title = "" if group.title in ("options", "positional arguments") else f"\n### {group.title}\n"
    return f"{title}\n| option | meaning |\n| --- | --- |\n{''.join(rows)}"


def spelled(action: argparse.Action) -> str:
    """Format an option as it is typed."""
    if action.choices is not None and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = str(action.metavar or "")
    if not action.option_strings:
        return f"`{value}`"
    is_optional = action.nargs == argparse.OPTIONAL
    end = "" if action.nargs == 0 or not value else f"[={value}]" if is_optional else f" {value}"
    return ", ".join(f"`{flag}{end}`" for flag in action.option_strings).replace("|", "\\|")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), "utf-8")
    else:
        sys.exit("usage: python -m tests.tidy.cli_page --write")
