"""Answers a file of requests, a line of JSON each, in the form of OpenAI's batches and vLLM's.

Results come in the order of the requests; requests that were answered with an error have theirs in
a file of their own. A command that was killed or interrupted continues when it is given again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.engine_options import (
    add_engine_options,
    add_timing_options,
    engine_options,
    timing_of,
)
from octavo.cli.flags.adapters import add_adapter_flags, applied
from octavo.cli.output import ProgressLine
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.server_options import with_adapters
from octavo.options import DEFAULT_MODEL
from octavo.options.declare import add_flags, declared_in, given_in
from octavo.options.server import ServerSettings

if TYPE_CHECKING:
    from octavo.server.offline import Outcome, Paths
    from octavo.serving.batches.input_file import InputFile


_ONLY_OF_SERVERS = ("lora_directory_seconds", "allow_runtime_lora_updating")


def add_arguments(parser: Parser) -> None:
    """Add the files, the model, and the engine's flags."""
    parser.add_argument("requests", metavar="IN", nargs="?", type=Path, help="the requests")
    parser.add_argument("output", metavar="OUT", nargs="?", type=Path, help="the results")
    for flag, name in (("-i", "input_file"), ("-o", "output_file")):
        long = "--" + name.replace("_", "-")
        parser.add_argument(flag, long, dest=name, type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "-m", "--model", metavar="MODEL", default=DEFAULT_MODEL, help="the model (smollm2)"
    )
    parser.add_argument(
        "--errors", metavar="PATH", type=Path, help="errors (OUT with .errors before its suffix)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an output that is there already"
    )
    parser.add_argument(
        "--served-model-name",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="the names that requests may call the model by; by default its own",
    )
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="a Jinja template instead of the model's: a file, or the template itself",
    )
    for what in ("tool-call", "reasoning"):
        parser.add_argument(
            f"--{what}-parser",
            metavar="NAME",
            help=f"the format of the model's {what.replace('-', ' ')}s, if it is not detected"
            if what == "tool-call"
            else "the format of its reasoning, likewise; none: it is not separated",
        )
    group = parser.add_argument_group("adapters")
    add_flags(group, ServerSettings, "adapters", without=_ONLY_OF_SERVERS)
    add_adapter_flags(group)
    add_engine_options(parser)
    add_timing_options(parser)
    parser.set_defaults(engine="process")


def run(arguments: argparse.Namespace) -> int:
    """Check the file, load the model, answer; return 1 if a request was answered with an error."""
    import asyncio

    from octavo.api.async_llm import AsyncLLM
    from octavo.server.offline import open_requests

    paths = _paths(arguments)
    config = _settings(arguments)
    timing = timing_of(arguments)
    options = with_adapters(engine_options(arguments), config)
    file = open_requests(paths, lambda warning: sys.stderr.write(f"{warning}\n"))
    try:
        llm = AsyncLLM(arguments.model, engine="process", timing=timing, **options)
        try:
            outcome = asyncio.run(_answer(llm, config, file, paths))
        finally:
            llm.close()
    finally:
        file.close()
    where = f"; errors: {outcome.num_errors}, in {paths.errors}" if outcome.num_errors else ""
    num_well = outcome.num_lines - outcome.num_errors
    sys.stderr.write(f"results: {num_well}, in {paths.output}{where}\n")
    return 1 if outcome.num_errors else 0


async def _answer(llm: object, config: ServerSettings, file: InputFile, paths: Paths) -> Outcome:
    import asyncio

    from octavo.api.async_llm import AsyncLLM
    from octavo.server.offline import answer_file

    assert isinstance(llm, AsyncLLM)
    progress = Progress()
    try:
        return await answer_file(llm, config, file, paths, progress.show)
    except asyncio.CancelledError:
        sys.stderr.write(f"\nThe same command continues; {paths.progress} has what is done.\n")
        raise
    finally:
        progress.close()


class Progress:
    """The progress of a batch."""

    def __init__(self) -> None:
        self._line = ProgressLine()
        self._num_before: int | None = None

    def show(self, done: int, total: int, tokens: int) -> None:
        """Take the numbers of results, of requests and of generated tokens."""
        if self._num_before is None:
            self._num_before = done
            if done:
                sys.stderr.write(f"results that are there already: {done} of {total}\n")
        if not self._line.is_due(is_end=done == total):
            return
        seconds = self._line.seconds
        rate = (done - self._num_before) / seconds
        self._line.write(
            f"{done}/{total} requests, {rate:.1f} requests/s, {tokens / seconds:.0f} tokens/s"
        )

    def close(self) -> None:
        """Leave the line as it is and start the next."""
        self._line.close()


def _paths(arguments: argparse.Namespace) -> Paths:
    """Return the files; refuse an output that would be lost, or that cannot be written."""
    from octavo.server.offline import Paths

    requests = arguments.requests or arguments.input_file
    output = arguments.output or arguments.output_file
    if requests is None or output is None:
        raise UsageError("name the file of requests and that of results: octavo batch IN OUT")
    _check_is_file(output)
    errors = arguments.errors or output.with_name(f"{output.stem}.errors{output.suffix}")
    _check_is_file(errors)
    paths = Paths(requests, output, errors)
    if len({path.resolve() for path in (requests, output, errors)}) < 3:
        raise UsageError("requests, results and errors need a file each")
    _check_readable(requests)
    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} is no directory; make it first")
    if not arguments.overwrite and not paths.progress.exists():
        for path in (output, errors):
            if path.exists():
                raise UsageError(f"{path} is there already; add --overwrite to replace it")
    return paths


def _check_is_file(output: Path) -> None:
    """Refuse an output that is no regular file: a new file would take its place at the end."""
    if output.is_dir():
        raise UsageError(f"{output} is a directory; name a file in it for the results")
    if output.exists() and not output.is_file():
        raise UsageError(f"{output} is no regular file, and would be replaced by one; name another")


def _check_readable(requests: Path) -> None:
    """Refuse requests that are in no file, which has to be read several times."""
    try:
        with requests.open("rb"):
            is_file = requests.is_file()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the file of requests {requests} cannot be read: {why}; name another, or make "
            "this one readable"
        ) from None
    if not is_file:
        raise UsageError(f"{requests} is no file; write the requests to one first")


def _adapters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that say which adapters requests may name."""
    group = [each.name for each in declared_in(ServerSettings) if each.option.group == "adapters"]
    asked = given_in(arguments, ServerSettings)
    named = {name: value for name, value in asked.items() if name in group}
    return {**named, "lora_modules": applied(named.get("lora_modules", ()), arguments)}


def _settings(arguments: argparse.Namespace) -> ServerSettings:
    from octavo.server.offline import MAX_BODY_BYTES, SECONDS
    from octavo.serving.answers.formats import check_names

    template = None
    if arguments.chat_template is not None:
        from octavo.cli.template import read_template

        template = read_template(arguments.chat_template)
    config = ServerSettings(
        served_model_name=tuple(arguments.served_model_name or ()) or None,
        chat_template=template,
        tool_call_parser=arguments.tool_call_parser,
        reasoning_parser=arguments.reasoning_parser,
        max_body_bytes=MAX_BODY_BYTES,
        max_request_seconds=SECONDS,
        trust_request_chat_template=True,  # the requests are the user's own
        **_adapters(arguments),
    )
    if config.tool_call_parser or config.reasoning_parser:
        check_names(config)
    return config
