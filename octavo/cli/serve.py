"""Serves a model over HTTP, with the API of OpenAI and vLLM.

The first SIGTERM or Ctrl-C lets running requests finish; the second ends at once. The engine runs
in a process of its own; if that dies, another one continues all requests.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo import env
from octavo.cli.engine_options import (
    add_engine_options,
    add_model,
    add_timing_options,
    engine_options,
    model_of,
    timing_of,
)
from octavo.cli.flags.log_level import add_log_level
from octavo.cli.flags.other_servers import add_other_flags, check_other_flags
from octavo.cli.output import size, table
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.server_options import add_server_options, server_settings, with_adapters
from octavo.cli.several.check import check_several, names_several
from octavo.cli.several.run import run_several
from octavo.observe.collection import no_collection
from octavo.options.declare import add_flags, given_in
from octavo.options.engines import ENGINES
from octavo.options.models import ModelsSettings

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from octavo.api.async_llm import AsyncLLM
    from octavo.client.restart_policy import Timing
    from octavo.loader import ModelFiles
    from octavo.options.engine import EngineArguments
    from octavo.options.server import ServerSettings
    from octavo.server.lifecycle import ServerLifecycle
    from octavo.transport.restart.waiting_room import WaitingRoom
    from octavo.wire.facts import EngineFacts
    from octavo.workers.process import Worker

log = logging.getLogger("octavo.cli")


def add_arguments(parser: Parser) -> None:
    """Add the flags of the model, the server and the engine."""
    add_model(parser, several=True)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a file of options, in YAML, TOML or JSON, whose keys are the names of flags "
        "(OCTAVO_CONFIG); a flag on the command line goes before a variable such as OCTAVO_PORT, "
        "and that before the file",
    )
    parser.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        default="process",
        help="where engines run: in a process of its own, or in this one, for debugging",
    )
    add_log_level(parser)
    add_server_options(parser)
    add_flags(parser.add_argument_group("several models"), ModelsSettings)
    add_engine_options(parser)
    add_timing_options(parser)
    add_other_flags(parser)


class Settings(NamedTuple):
    """The settings of a server and its engines, checked."""

    server: ServerSettings
    timing: Timing
    engine: EngineArguments  # of the first model
    options: dict[str, Any]  # the engine's, as they were given
    several: ModelsSettings | None  # None: it has one model


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the command line, the variables and the file."""
    from octavo.options.engine import read_arguments

    check_other_flags(arguments)
    server = server_settings(arguments)
    timing = timing_of(arguments)
    options = with_adapters(engine_options(arguments), server)
    several = _several(arguments)
    if several is None:
        asked = read_arguments(model_of(arguments), options)
        if asked.nnodes > 1 and server.handover is not None:
            raise UsageError(
                "--handover needs two engines for a moment, and the nodes of --nnodes, or of "
                "--distributed-executor-backend ray, are in one at a time; leave one of them out"
            )
    else:
        asked = read_arguments((*arguments.model_word, str(several.models_dir))[0], options)
        check_several(arguments, server, asked)
    return Settings(server, timing, asked, options, several)


def run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, load the model, serve."""
    from octavo.observe.machine import process_age

    start = StartUp(time.monotonic() - (process_age() or 0.0))
    from octavo.loader.source import resolve
    from octavo.observe.output import output_never_blocks
    from octavo.options.engine import read_arguments
    from octavo.transport.middleware import check_middlewares
    from octavo.transport.restart.given import check_addresses
    from octavo.transport.restart.waiting_room import waiting_room
    from octavo.transport.tls import make_context
    from octavo.usable import choose_backend

    config, timing, asked, options, several = settings_of(arguments)
    given = [each for each in arguments.origins.values() if each.startswith(env.SETTING)]
    if given:
        log.info("options come from variables: %s", ", ".join(sorted(given)))
    choose_backend(asked, is_first=True)
    if asked.headless:
        return _run_headless(asked)
    check_addresses(config)
    if config.ssl_certfile is not None:
        make_context(config)
    if config.grpc_port is not None:
        from octavo.dialects.grpc.messages import messages

        messages()
    check_middlewares(config.middleware)
    if config.otlp_traces_endpoint is not None:
        from octavo.serving.traces import check_traces

        check_traces(config)
    if several is not None:

        def arguments_of(model: str) -> EngineArguments:
            return read_arguments(model, options)

        return run_several(arguments, config, several, timing, arguments_of)
    if config.journal is not None:
        _check_journal(config.journal)
    if config.responses_store is not None:
        _check_store(config.responses_store)
    # The tokenizer first: a wrong name must not wait for the download of the model.
    tokenizer = None if asked.tokenizer is None else _tokenizer_source(asked.tokenizer)
    # Resolved in this process, where the user sees the progress and the errors.
    model = resolve(asked.model, has_weights=asked.has_weights)
    if asked.speculative_config is not None and asked.speculative_config.drafter is not None:
        resolve(asked.speculative_config.drafter)
    source = tokenizer or model
    start.lap("start Python, find the model")
    with contextlib.ExitStack() as stack:
        stack.enter_context(output_never_blocks())
        room = waiting_room(config)
        if room is not None:
            stack.callback(room.close)
        workers: list[Worker] = []
        if arguments.engine != "process":
            llm = _load_here(asked, arguments.engine, options)
        else:
            llm, workers = _load(asked, source, config, timing, stack)
        stack.callback(llm.close)
        start.add_engine(llm.facts, len(llm.engines))
        return _serve(config, llm, start, workers, room)


def _run_headless(asked: EngineArguments) -> int:
    """Run the stages of a node that has no server; its settings of one are not used."""
    from octavo.engine.nodes.headless import find_model, run_node

    find_model(asked)  # here, where the user sees the progress and the errors
    return run_node(asked)


def _several(arguments: argparse.Namespace) -> ModelsSettings | None:
    """Return the settings of several models; None for one."""
    settings = ModelsSettings(**given_in(arguments, ModelsSettings))
    if names_several(arguments):
        return settings
    given = list(given_in(arguments, ModelsSettings))
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag} is for several models; name them: octavo serve A B, --models-dir")
    return None


def _check_journal(path: Path) -> None:
    """Refuse a file that is no journal, or another server's, before the model is loaded."""
    from octavo.serving.durable.service import open_journal

    open_journal(path).close()


def _check_store(path: Path) -> None:
    """Refuse a file that holds no responses, or another server's, before the model is loaded."""
    from octavo.serving.store.sqlite_shelf import open_database

    open_database(path).close()


def _tokenizer_source(name: str) -> ModelFiles:
    from octavo.loader.errors import SourceError
    from octavo.loader.source import resolve

    try:
        return resolve(name)
    except SourceError as error:
        raise SourceError(f"tokenizer={name!r}: {error}") from error


def _load_here(asked: EngineArguments, engine: str, options: dict[str, Any]) -> AsyncLLM:
    from octavo.api.async_llm import AsyncLLM

    return AsyncLLM(asked.model, engine=engine, **options)


def _load(
    asked: EngineArguments,
    tokenizer: ModelFiles,
    config: ServerSettings,
    timing: Timing,
    stack: ExitStack,
) -> tuple[AsyncLLM, list[Worker]]:
    """Start the engines; meanwhile import the server, and start the prompt workers.

    Only they read the tokenizer. One of them sends the table of its tokens.
    """
    from octavo.adapter_copies.opening import open_copies
    from octavo.client.process import launch_engines

    asked, copies = open_copies(asked)
    if copies is not None:
        stack.callback(copies.close)
    client = launch_engines(asked, timing)
    stack.callback(client.close)
    with no_collection():
        importlib.import_module("octavo.server.lifecycle")
        from octavo.api.async_llm import AsyncLLM
        from octavo.workers.process import Worker

    workers = []
    for _ in range(config.prompt_workers):
        workers.append(Worker.launch(config, str(tokenizer.tokenizer_path)))
        stack.callback(workers[-1].end)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(workers[0].read_table)
        client.start()
    return AsyncLLM.over(client, asked, reading.result(), tokenizer, copies), workers


def _serve(
    config: ServerSettings,
    llm: AsyncLLM,
    start: StartUp,
    workers: list[Worker],
    room: WaitingRoom | None,
) -> int:
    from octavo.server import lifecycle
    from octavo.server.ready_text import ready_text

    def say_ready(life: ServerLifecycle) -> None:
        start.lap("open the sockets")
        tasks = llm.facts.pooling.tasks
        text = ready_text(life.config, life.port, life.server.model_name, tasks)
        sys.stdout.write(f"{text}\n{start.text()}\n{_memory_text(llm)}")
        sys.stdout.flush()

    return lifecycle.run(config, llm, say_ready, workers, room)


class StartUp:
    """The duration of each part of the start, in order."""

    def __init__(self, began: float) -> None:
        self._began = self._last = began
        self.laps: list[tuple[str, float]] = []

    def lap(self, what: str) -> None:
        """Add a part that began where the last one ended."""
        now = time.monotonic()
        self.laps.append((what, now - self._last))
        self._last = now

    def add_engine(self, facts: EngineFacts, num_engines: int) -> None:
        """Add the parts that the first engine measured, and the start of all processes.

        Meanwhile this process has imported the server and read the tokenizer.
        """
        now = time.monotonic()
        rest = now - self._last - sum(seconds for _, seconds in facts.start_seconds)
        what = "start the engine's process" if num_engines == 1 else "start the engines' processes"
        self.laps.append((what, max(rest, 0.0)))
        self.laps += facts.start_seconds
        self._last = now

    def text(self) -> str:
        """Return a table of the parts, with their sum."""
        rows = [(what, f"{seconds:.2f} s") for what, seconds in self.laps]
        rows.append(("ready after", f"{self._last - self._began:.2f} s"))
        return table(rows, indent="  ", right=(1,))


def _memory_text(llm: AsyncLLM) -> str:
    found = llm.facts.memory_bytes.items()
    sizes = ", ".join(f"{name} {size(count)}" for name, count in found)
    where = "" if len(llm.engines) == 1 else f" of each of {len(llm.engines)} engines"
    return f"  memory{where}: {sizes}\n" if sizes else ""
